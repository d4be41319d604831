"""What was bad before any operation: memory nobody wrote, constants, weights and data."""

from __future__ import annotations

from math import isfinite, isnan

from ..ops.cause import Cause
from ..ops.operation import Operation
from .element import PASSING, Element
from .names import bare
from .rule import DOCS, Rule
from .values import numbers_of
from .words import number, place

_EMPTY = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize",
    }
)
#: Operations that write a number, and the argument with it.
_CONSTANTS = {
    "fill": "value",
    "full": "fill_value",
    "full_like": "fill_value",
    "index_fill": "value",
    "masked_fill": "value",
    "new_full": "fill_value",
    "scalar_tensor": "s",
}
#: Arguments that are parameters or buffers of a module.
_STATE = frozenset({"bias", "running_mean", "running_var", "weight"})

_UNWRITTEN = (
    "torch.empty and its kin return memory as it is: use zeros, or write all of it before reading."
)


def _unwritten(operation: Operation, at: Element) -> Cause | None:
    """Memory that an operation reads, or hands out, before anything was written to it."""
    if at.name in _EMPTY:
        return Cause(f"{operation.name} returns memory that nobody has written{at.at}.", _UNWRITTEN)
    for name in operation.sources:
        source = at.root(name)
        if source is not None and bare(source.name) in _EMPTY:
            called = at.called(name)
            return Cause(
                f"{called} comes from {source.name} and was read before it was written"
                f"{_bad_place(at, name)}.",
                _UNWRITTEN,
            )
    return None


def _bad_place(at: Element, name: str) -> str:
    found = _first_bad(at, name)
    return "" if found is None else f": {at.called(name)}{place(found[0])} is {number(found[1])}"


def _first_bad(at: Element, name: str) -> tuple[tuple[int, ...], float] | None:
    """The first NaN, else infinity, of an argument."""
    tensor = at.tensor(name)
    if tensor is None or not tensor.is_floating_point():
        return None
    bad = tensor.isnan()
    if not bool(bad.any()):
        bad = tensor.isinf()
    if not bool(bad.any()):
        return None
    index = tuple(int(item) for item in bad.nonzero()[0])
    return index, float(tensor[index].item())


def _constant(operation: Operation, at: Element) -> Cause | None:
    """A number that the program itself writes."""
    value = at.operand(_CONSTANTS[at.name])
    if value is None or isfinite(value) or (value != at.value and not isnan(value)):
        return None
    return Cause(
        f"The program writes {number(value)} there{at.at}, by {operation.name}.",
        "Write a finite number, such as torch.finfo(x.dtype).min for a mask.",
    )


def _from_outside(operation: Operation, at: Element) -> Cause | None:
    """An argument that no operation of this step made bad: a weight, or data."""
    if at.is_backward:
        return None
    for name in operation.arguments:
        found = _first_bad(at, name)
        if found is None or not _is_outside(at.origin(name)):
            continue
        index, value = found
        if value < 0 and name not in _STATE:
            continue  # a mask
        return Cause(
            f"{at.called(name)} was bad before this operation, and none of this step made it so: "
            f"{at.called(name)}{place(index)} is {number(value)}.",
            "Check where it comes from: a weight that was never initialised or not in the "
            "checkpoint (missing keys), an earlier optimizer step, or the data.",
        )
    return None


def _is_outside(source: Operation | None) -> bool:
    """Whether nothing made the value here, or something that only handed it on."""
    if source is None:
        return True
    tensors = map(numbers_of, source.arguments.values())
    return bare(source.name) in PASSING and any(
        tensor is not None and not bool(tensor.isfinite().all()) for tensor in tensors
    )


UNWRITTEN = (Rule("memory nobody wrote", frozenset({"*"}), _unwritten, DOCS + "empty.html"),)
RULES = (
    Rule("a constant that isn't finite", frozenset(_CONSTANTS), _constant, DOCS + "full.html"),
    Rule("bad before the operation", frozenset({"*"}), _from_outside, DOCS + "nn.Module.html"),
)
