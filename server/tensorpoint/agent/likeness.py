"""Which modules look like an attention, so that a softmax in their forward is one's weights.

A softmax is used for much else: routers, classifiers, samplers. It counts where the module whose
forward calls it is called like an attention or has the projections of one, and holds no module that
is one itself (a model called `AttentionClassifier`, a block with an attention in it).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.nn import Module

_NAMES = re.compile(r"attention|attn|multihead|mha(?![a-z])", re.IGNORECASE)
#: Children or parameters by which the projections are known, written without "_proj" and the like.
_PROJECTIONS = (
    frozenset({"query", "key"}),
    frozenset({"q", "k"}),
    frozenset({"wq", "wk"}),
    frozenset({"qkv"}),
    frozenset({"wqkv"}),
    frozenset({"query_key_value"}),
    frozenset({"c_attn"}),
)
_TRIMMED = re.compile(r"^(to|in|w|fc|lin|linear)_|_?(proj|projection|linear|lin|layer|weight)$|s$")
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "nheads", "heads", "h")
#: Modules of torch that attentions are made of, and that a softmax or a product may run in.
_PARTS = ("Softmax", "Dropout", "Identity", "Softmin")


def attends(module: Module) -> bool:
    """Whether a softmax in the forward of `module` itself is one over attention scores."""
    return looks_like_attention(module) and not any(
        inner is not module and looks_like_attention(inner) for inner in module.modules()
    )


def looks_like_attention(module: Module) -> bool:
    """By the name of its class or of its projections."""
    kind = type(module)
    if kind.__module__.startswith("torch.nn.modules.") and kind.__name__ != "MultiheadAttention":
        return False
    if _NAMES.search(kind.__name__):
        return True
    own = {_TRIMMED.sub("", name) for name in (*module._modules, *module._parameters)}
    return any(projections <= own for projections in _PROJECTIONS)


def is_part_of_attention(module: Module) -> bool:
    """Whether it is only a part of what attends: `nn.Softmax` as a module of its own."""
    kind = type(module)
    return kind.__module__.startswith("torch.nn.modules.") and kind.__name__ in _PARTS


def heads_of(module: Module) -> int:
    """How many heads it says that it has; 1 if it says nothing."""
    for name in _HEADS:
        number: Any = getattr(module, name, None)
        if type(number) is int and number > 0:
            return number
    return 1
