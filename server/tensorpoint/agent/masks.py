"""Is a -inf deliberate? Attention masks and masked logits are full of them.

At module level the values alone can't always tell a mask from `log(0)`, so several signs are
asked, surest first: what the tensor is called, whether it holds nothing but one number and
-inf, and what autograd recorded. Where autograd recorded nothing (`no_grad` in a module of the
user's own) the module's code is asked whether it speaks of masks (`mask_words`), and whether a
layer in it has returned masked values; else a debugger would stop at every masked logit, and be
switched off. A single number is no mask. NaN and +inf are never deliberate.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from .mask_words import may_mask
from .tensors import unseen, values_of

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

_MASK_NAMES = ("mask", "bias")
#: autograd nodes that write a constant into chosen places
_MASKING = (
    "MaskedFill",
    "MaskedScatter",
    "Where",
    "IndexPut",
    "IndexFill",
    "IndexCopy",
    "Scatter",
    "Copy",
    "Fill",
    "Triu",
    "Tril",
    "ConstantPad",
)
#: nodes that move or scale values but make no -inf of their own from finite ones
_PASSING = (
    "View",
    "UnsafeView",
    "ReshapeAlias",
    "Transpose",
    "Permute",
    "Expand",
    "Slice",
    "Select",
    "Unsqueeze",
    "Squeeze",
    "Cat",
    "Stack",
    "Split",
    "Unbind",
    "ToCopy",
    "Clone",
    "T",
    "Alias",
    "Repeat",
    "Sub",
    "Mul",
    "Div",
)
#: Layers of torch in which each value of the output is made of many of the input.
_MIXING = (
    "BatchNorm",
    "Bilinear",
    "Conv",
    "GRU",
    "GroupNorm",
    "LSTM",
    "LayerNorm",
    "Linear",
    "RNN",
)
_MAX_NODES = 64


@unseen
def is_mask(tensor: torch.Tensor, name: str, consumer: Module) -> bool | None:
    """Whether a tensor with no other non-finite values than -inf is meant so; None if unknown.

    `name` is the argument's name; `consumer` the module that receives it: a softmax is made for
    masked scores.
    """
    last = name.rpartition(".")[2]
    if any(word in last for word in _MASK_NAMES) or _holds_one_number(tensor):
        return True
    if "Softmax" in type(consumer).__name__:
        return True
    made = _made_by_masking(tensor)
    return False if made is None and _mixes(consumer) else made


def _mixes(module: Module) -> bool:
    """Whether it is one of torch's layers that multiply and add: they would make NaN of a mask."""
    kind = type(module)
    return kind.__module__.startswith("torch.nn.modules.") and kind.__name__.startswith(_MIXING)


@unseen
def is_masked_output(tensor: torch.Tensor, module: Module, masked_inside: bool = False) -> bool:
    """The same for an output of `module` whose inputs are finite.

    `masked_inside` says whether a layer in it has returned masked values. A torch layer without
    children (`Linear`, `LogSoftmax`) never masks: its -inf is an overflow or a logarithm of zero,
    as is one next to values near the limits of a half-precision type.
    """
    if _holds_one_number(tensor):
        return True
    if type(module).__module__.startswith("torch.nn.modules.") and not module._modules:
        return False
    made = _made_by_masking(tensor)
    if made is not None:
        return made
    if _near_overflow(tensor) or (tensor.dim() == 0 and not masked_inside):
        return False
    return masked_inside or may_mask(module)


def _holds_one_number(tensor: torch.Tensor) -> bool:
    """{0, -inf}: an additive mask. A single finite value elsewhere makes it one too."""
    torch = sys.modules["torch"]
    values = values_of(tensor)
    if values is None:
        return False
    good = values[torch.isfinite(values)]
    return good.numel() > 0 and bool((good == good.reshape(-1)[0]).all()) and values.numel() > 2


def _near_overflow(tensor: torch.Tensor) -> bool:
    torch = sys.modules["torch"]
    values = values_of(tensor)
    if values is None or values.element_size() > 2:
        return False
    good = values[torch.isfinite(values)]
    limit = torch.finfo(values.dtype).max / 8
    return good.numel() > 0 and float(good.abs().max()) > limit


def _made_by_masking(tensor: torch.Tensor) -> bool | None:
    """What autograd recorded: True for a masking node, False for a computation, None if unknown.

    An addition of a constant (an operand without a gradient) is how an additive mask is applied.
    """
    start: Any = tensor.grad_fn
    if start is None:
        return None
    queue: deque[Any] = deque([start])
    for _ in range(_MAX_NODES):
        if not queue:
            break
        node = queue.popleft()
        kind = type(node).__name__.partition("Backward")[0]
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        if kind.startswith(_MASKING):
            return True
        if kind == "Add":
            if len(parents) < len(node.next_functions):
                return True
            queue.extend(parents)
        elif kind in _PASSING or kind.rstrip("0123456789") in _PASSING:
            queue.extend(parents)
        elif node is start:
            return False
    return False
