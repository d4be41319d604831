"""Is a -inf deliberate? Attention masks and masked logits are full of them.

At module level the values alone can't always tell a mask from `log(0)`, so several signs are
asked, surest first: what the tensor is called, and what autograd recorded. A product of matrices
and the logarithm of a saturated softmax are no masks, however they look. Where autograd recorded
nothing, one number and -inf are a mask, unless one is left in each row or the code takes
probabilities (`mask_words`). In `no_grad` in a module of the user's own that is asked whether it
speaks of masks, and whether a layer in it has returned masked values; else a debugger would stop at
every masked logit, and be switched off. A single number is no mask. NaN and +inf are never
deliberate.
"""

from __future__ import annotations

import sys
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any

from .mask_words import may_mask, takes_probabilities
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
    "LogSoftmax",
)
_LOGARITHMS = ("Log", "Log2", "Log10")
#: Nodes of products: of a masked value they make NaN, or a -inf that nobody means.
_PRODUCTS = ("Addmm", "Addmv", "Baddbmm", "Bmm", "Convolution", "Dot", "Linear", "Mm", "Mv")
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
    if any(word in last for word in _MASK_NAMES) or "Softmax" in type(consumer).__name__:
        return True
    made = _made_by_masking(tensor)
    if made is not None:
        return made
    if _mixes(consumer):
        return False
    return True if _holds_one_number(tensor) else None


def _mixes(module: Module) -> bool:
    """Whether it is one of torch's layers that multiply and add: they would make NaN of a mask."""
    kind = type(module)
    return kind.__module__.startswith("torch.nn.modules.") and kind.__name__.startswith(_MIXING)


@unseen
def hands_on_masks(module: Module, output: torch.Tensor) -> bool:
    """Whether a -inf in an output may be that of a mask which the module was given."""
    return not _mixes(module) and _first_kind(output) not in _PRODUCTS


@unseen
def is_masked_output(tensor: torch.Tensor, module: Module, masked_inside: bool = False) -> bool:
    """The same for an output of `module` whose inputs are finite.

    `masked_inside` says whether a layer in it has returned masked values. A torch layer without
    children (`Linear`, `LogSoftmax`) never masks, unless it was given an infinity to write: its
    -inf is an overflow or a logarithm of zero, as is one next to values near the limits of a
    half-precision type.
    """
    if type(module).__module__.startswith("torch.nn.modules.") and not module._modules:
        return _was_given_infinity(module)
    made = _made_by_masking(tensor)
    if made is not None:
        return made
    looks_so = _holds_one_number(tensor)
    if not looks_so and (_near_overflow(tensor) or (tensor.dim() == 0 and not masked_inside)):
        return False
    if masked_inside or may_mask(module):
        return True
    return looks_so and not (_chooses(tensor) or takes_probabilities(module))


def _was_given_infinity(module: Module) -> bool:
    """Whether a layer of torch's has a -inf as an option, or in a tensor that isn't trained."""
    if any(isinstance(value, float) and value == -inf for value in vars(module).values()):
        return True
    torch = sys.modules["torch"]
    for tensor in (*module._parameters.values(), *module._buffers.values()):
        values = None if tensor is None or tensor.requires_grad else values_of(tensor)
        if values is not None and bool(torch.isneginf(values).any()) and bool((values < inf).all()):
            return True
    return False


def _holds_one_number(tensor: torch.Tensor) -> bool:
    """{0, -inf}: an additive mask. A single finite value elsewhere makes it one too."""
    torch = sys.modules["torch"]
    values = values_of(tensor)
    if values is None:
        return False
    good = values[torch.isfinite(values)]
    return good.numel() > 0 and bool((good == good.reshape(-1)[0]).all()) and values.numel() > 2


def _chooses(tensor: torch.Tensor) -> bool:
    """Whether one element is left in each of several rows: the logarithm of a softmax of 0 and 1.

    Where gradients are on that has a graph, unless it was computed of constants.
    """
    torch, values = sys.modules["torch"], values_of(tensor)
    if values is None or torch.is_grad_enabled():
        return False
    left = torch.isfinite(values)
    return any(
        1 < size < left.numel() and bool((left.sum(dim) == 1).all())
        for dim, size in enumerate(left.shape)
    )


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

    An addition of a constant (an operand without a gradient) is how an additive mask is applied,
    if it wasn't the logarithm of a zero that it was added to.
    """
    start: Any = tensor.grad_fn
    if start is None:
        return None
    queue, masked = deque[Any]([start]), False
    for _ in range(_MAX_NODES):
        if not queue:
            break
        node = queue.popleft()
        kind = _kind(node)
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        if kind.startswith(_MASKING):
            return True
        if kind == "Add":
            masked |= len(parents) < len(node.next_functions)
            queue.extend(parents)
        elif kind in _PASSING:
            queue.extend(parents)
        elif kind in _LOGARITHMS and _has_seen_zero(node):
            return False
    return masked


def _kind(node: Any) -> str:
    """ "Split" of "SplitBackward0", "T" of "TBackward0"."""
    return type(node).__name__.partition("Backward")[0]


def _first_kind(tensor: torch.Tensor) -> str:
    """Of the node that made its values, past those that move them or add a constant."""
    node: Any = tensor.grad_fn
    for _ in range(_MAX_NODES):
        parents = [] if node is None else [p for p, _ in node.next_functions if p is not None]
        if len(parents) != 1 or _kind(node) not in (*_PASSING, "Add"):
            break
        node = parents[0]
    return "" if node is None else _kind(node)


def _has_seen_zero(node: Any) -> bool:
    """Whether what a logarithm was of holds a 0; False where that is gone, or not torch's."""
    try:
        argument = getattr(node, "_saved_self", None)
    except RuntimeError:
        return False
    return argument is not None and not bool(argument.all())
