"""Numbers too small for a half-precision type: it rounds them to 0, which has no logarithm."""

from __future__ import annotations

import sys
from math import exp, isnan

from ..ops.cause import Cause
from ..ops.operation import Operation
from . import overflow, products
from .domain import EDGES
from .element import Element
from .rule import Rule
from .values import is_inside, unravel
from .words import count, number

#: The argument that must not be 0.
_POLES = {
    **dict.fromkeys(("log", "log2", "log10", "reciprocal", "rsqrt", "pow", "float_power"), "self"),
    **dict.fromkeys(("div", "xlogy"), "other"),
}
_LOGARITHMS = frozenset({"log", "log2", "log10", "xlogy"})
_EXPONENTIALS = {
    "exp": exp,
    "exp2": lambda x: 2.0**x,
    "sigmoid": lambda x: exp(x) / (1 + exp(x)),
}
_SOFTMAX = frozenset({"_softmax", "softmax"})
#: Types with a larger range, and their smallest numbers.
_WIDER = (("bfloat16 or float32", 9.2e-41), ("float32", 1.4e-45), ("float64", 4.9e-324))
_CASTS = frozenset({"_to_copy", "copy", "to"})


def _rounded(operation: Operation, at: Element) -> Cause | None:
    """A 0 that would be a small number in a wider type."""
    pole = _POLES[at.name]
    operands = [at.operand(name) for name in ("self", "other", "exponent")]
    if at.operand(pole) != 0 or any(value is not None and isnan(value) for value in operands):
        return None
    made = _made(operation, at, pole)
    found = None if made is None else _exact(made)
    if made is None or found is None:
        return None
    what, value = found
    if not 0 < abs(value) < _tiny(made):
        return None
    return Cause(
        f"{_said(at)}: {at.fact(pole)}, to which {made.dtype} has rounded {what} = "
        f"{number(value)}.",
        _cure(at, made, abs(value)),
    )


def _made(operation: Operation, at: Element, name: str) -> Element | None:
    """The same element where it was made."""
    source, tensor, index = operation.rounded.get(name), at.tensor(name), at.index_of(name)
    if source is None or tensor is None or index is None:
        return None
    output = source.output
    if tensor.untyped_storage()._cdata == output.untyped_storage()._cdata:
        steps = sum(place * stride for place, stride in zip(index, tensor.stride()))
        offset = int(tensor.storage_offset() + steps - output.storage_offset())
        if not output.is_contiguous() or not 0 <= offset < output.numel():
            return None
        index = unravel(offset, tuple(output.shape))
    elif tensor.shape != output.shape or not is_inside(index, output):
        return None
    return Element(source, index, 0.0, {})


def _exact(at: Element) -> tuple[str, float] | None:
    """What the element is in float64, and how that is written."""
    x = at.operand("src" if at.name == "copy" else "self")
    if at.name in _SOFTMAX:
        dim = at.argument("dim")
        row = at.along("self", dim) if isinstance(dim, int) else None
        if x is None or row is None:
            return None
        total = float(row.logsumexp(0))
        return f"the softmax of {number(x)} beside {number(float(row.max()))}", exp(x - total)
    if at.name in _EXPONENTIALS:
        value = None if x is None or x > 0 else _EXPONENTIALS[at.name](x)
        return None if value is None else (f"{at.name}({number(x or 0.0)})", value)
    if at.name in _CASTS:
        before = at.tensor("src" if at.name == "copy" else "self")
        return None if x is None or before is None else (f"a {_type(before)}", x)
    if at.name in ("pow", "square"):
        exponent = at.operand("exponent") if at.name == "pow" else 2.0
        if x is None or exponent is None or not (abs(x) < 1 and exponent > 0):
            return None
        base = number(x) if x >= 0 else f"({number(x)})"
        return f"{base}^{number(exponent)}", abs(x) ** exponent
    if at.name in products.FACTORS:
        terms = products.terms_of(at)
        if terms is None:
            return None
        total = float((terms.left * terms.right * terms.scale).sum()) + terms.added
        return f"a sum of {count(len(terms.left), 'product')}", total
    found = overflow.value_of(at)
    return None if found is None else (found[1], found[0])


def _type(tensor: object) -> str:
    return str(getattr(tensor, "dtype", "")).removeprefix("torch.")


def _said(at: Element) -> str:
    if at.name == "div":
        return f"{number(at.operand('self') or 0.0)}/0 is {number(at.value)}"
    if at.name == "xlogy":
        return f"x·log(y) is {number(at.value)} where the logarithm is of 0"
    if at.name in EDGES:
        return f"{EDGES[at.name].function} of 0 is {number(at.value)}"
    return f"0 to the power {number(at.operand('exponent') or 0.0)} is {number(at.value)}"


def _cure(at: Element, made: Element, value: float) -> str:
    if at.name in _LOGARITHMS and (made.name in _SOFTMAX or made.name in _EXPONENTIALS):
        return (
            "Stay with logarithms: log_softmax or logsigmoid in place of the logarithm of a "
            "probability, the exponent in place of that of an exponential."
        )
    wider = next((name for name, smallest in _WIDER if value >= smallest), None)
    return (
        f"{'Scale the numbers up' if wider is None else f'Compute this in {wider}'}, or add a "
        f"number that {made.dtype} doesn't round to 0, such as {number(_tiny(made))}."
    )


def _tiny(at: Element) -> float:
    return float(sys.modules["torch"].finfo(at.operation.output.dtype).tiny)


RULES = (
    Rule(
        "a number that rounds to 0",
        frozenset(_POLES),
        _rounded,
        "https://docs.pytorch.org/docs/stable/type_info.html",
    ),
)
