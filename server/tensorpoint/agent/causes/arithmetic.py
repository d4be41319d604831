"""Divisions by zero, and what has no value: inf - inf, 0·inf, inf/inf."""

from __future__ import annotations

from math import inf, isfinite, isinf, isnan

from ..ops.cause import Cause
from ..ops.operation import Operation
from .element import Element
from .names import bare
from .rule import DOCS, IEEE, Rule
from .words import number

#: What is added to what: the operand that is scaled by `alpha` comes second.
_SUMS = {"add": ("self", "other", 1.0), "sub": ("self", "other", -1.0)}
_DIVISIONS = frozenset({"div", "remainder", "fmod", "floor_divide", "addcdiv"})
_LOGARITHMS = frozenset({"log", "log2", "log10", "log1p", "_log_softmax", "log_softmax"})

_SAFE_DIVISION = (
    "Add a small number to the divisor that is not 0 in its type, or skip what has nothing to "
    "divide by; F.normalize, F.cosine_similarity and the norm layers take an eps."
)


def _operands(at: Element) -> tuple[str, str]:
    """The names of the two operands: overloads call the second one otherwise."""
    if at.name in ("addcdiv", "addcmul"):
        return "tensor1", "tensor2"
    return "self", at.first("other", "scalar", "scalars", "tensor") or "other"


def _zero_division(operation: Operation, at: Element) -> Cause | None:
    """x/0 and 0/0."""
    dividend, divisor = _operands(at)
    x, y = at.operand(dividend), at.operand(divisor)
    if x is None or y != 0 or isnan(x):
        return None
    what = f"{number(x)}/0 {'is' if at.name == 'div' else 'makes'} {number(at.value)}"
    if at.name in ("remainder", "fmod"):
        what = f"The remainder of a division by 0 is {number(at.value)}"
    return Cause(f"{what}: {at.facts(dividend, divisor)}{at.rounding}.", _SAFE_DIVISION)


def _difference(operation: Operation, at: Element) -> Cause | None:
    """inf - inf, in a sum of two."""
    first, second, sign = _SUMS[at.name]
    second = at.first(second, "scalar", "scalars") or second
    x, y = at.operand(first), at.operand(second)
    if x is None or y is None or not at.is_nan or not (isinf(x) and isinf(y)):
        return None
    alpha = at.operand("alpha")
    if x != -y * sign * (1.0 if alpha is None else alpha):
        return None
    return Cause(
        f"inf - inf is NaN: {at.facts(first, second)}.",
        "Look for where both became infinite. If they are masked scores, mask with a large "
        "finite number, such as torch.finfo(x.dtype).min, or skip rows that are masked as a whole.",
    )


def _indefinite(operation: Operation, at: Element) -> Cause | None:
    """0·inf and inf/inf."""
    first, second = _operands(at)
    x, y = at.operand(first), at.operand(second)
    if x is None or y is None or not at.is_nan:
        return None
    if at.name in ("mul", "addcmul") and {0.0, inf} == {abs(x), abs(y)}:
        source = operation.sources.get(first if isinf(x) else second)
        if source is not None and -inf in (x, y) and bare(source.name) in _LOGARITHMS:
            return Cause(
                f"0·log(0) is NaN, not 0: {at.facts(first, second)}.",
                "Use torch.xlogy(p, p), or torch.special.entr(p) for -p·log(p), which are 0 there.",
            )
        return Cause(
            f"0·inf is NaN: {at.facts(first, second)}.",
            "A 0 does not remove an infinity: select with torch.where or masked_fill, and look for "
            "where the other operand became infinite.",
        )
    if at.name in _DIVISIONS and isinf(x) and isinf(y):
        return Cause(
            f"inf/inf is NaN: {at.facts(first, second)}.",
            "Look for where both became infinite; a quotient of exponentials is the softmax, or "
            "the exponential of a difference.",
        )
    return None


def _bad_number(operation: Operation, at: Element) -> Cause | None:
    """A number in the program that is itself inf or NaN, such as a learning rate."""
    if at.is_backward:
        return None
    for name, value in operation.arguments.items():
        if isinstance(value, (list, tuple)):
            value = at.argument(name)
        if not isinstance(value, float) or isfinite(value) or name in ("ord", "p", "norm_type"):
            continue
        others = [other for other in operation.arguments if at.operand(other) is not None]
        if any(not isfinite(at.operand(other) or 0.0) for other in others if other != name):
            continue
        return Cause(
            f"The number {at.names.get(name, name)} is {number(value)}"
            + (", the other operands are finite." if others != [name] else "."),
            "Look for where the program computes or sets that number.",
        )
    return None


RULES = (
    Rule("division by 0", _DIVISIONS, _zero_division, DOCS + "div.html"),
    Rule("inf - inf", frozenset(_SUMS), _difference, IEEE),
    Rule("0·inf and inf/inf", frozenset({"mul", "addcmul"}) | _DIVISIONS, _indefinite, IEEE),
    Rule(
        "a number that isn't finite",
        frozenset({"add", "sub", "mul", "div", "addcmul", "addcdiv", "pow", "lerp", "rsub"}),
        _bad_number,
        IEEE,
    ),
)
