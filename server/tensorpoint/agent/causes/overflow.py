"""Results beyond the largest number of their type: exponentials, sums, products, casts."""

from __future__ import annotations

from collections.abc import Callable
from math import hypot, inf, isfinite, log, log2

from ..ops.cause import Cause
from ..ops.operation import Operation
from .element import Element
from .rule import DOCS, Rule
from .words import number

#: The argument from which on the result is beyond the limit, by the limit.
_EXPONENTIALS: dict[str, Callable[[float], float]] = {
    "cosh": lambda limit: log(limit) + log(2),
    "exp": log,
    "exp2": log2,
    "expm1": log,
    "sinh": lambda limit: log(limit) + log(2),
}
_CASTS = frozenset({"_to_copy", "copy", "to"})


def beyond(at: Element, value: float) -> str:
    """How far a value is beyond the limit: "7.2e+04, beyond 65504, the limit of float16"."""
    return f"{number(value)}, beyond {limit(at)}"


def limit(at: Element) -> str:
    """ "65504, the limit of float16"."""
    return f"{number(at.limit)}, the limit of {at.dtype}"


def too_large(at: Element, cause: str, value: float | None = None) -> Cause:
    """What helps against numbers that are too large for their type."""
    if value is not None and at.is_backward and at.scale and abs(value / at.scale) <= at.limit:
        unscaled = number(value / at.scale)
        return Cause(
            f"{cause.rstrip('.')}; without the loss scale {number(at.scale)} it is {unscaled}.",
            "That is how GradScaler finds its scale: it skips the step and lowers the scale. If it "
            "goes on, pass a smaller init_scale.",
        )
    if at.dtype == "float16":
        return Cause(cause, "Compute this in bfloat16 or float32, whose limit is 3.4e+38.")
    return Cause(
        cause,
        "Keep the numbers small before: a lower learning rate, normalisation, clipping, or a "
        "computation in logarithms.",
    )


def _exponential(operation: Operation, at: Element) -> Cause | None:
    x = at.operand("self")
    if x is None or not at.is_infinite or not isfinite(x):
        return None
    border = _EXPONENTIALS[at.name](at.limit)
    if abs(x) < border * 0.999:
        return None
    side = "beyond ±" if at.name == "sinh" or at.name == "cosh" else "above "
    return Cause(
        f"{at.name} overflows {at.dtype} {side}{number(border)}: {at.fact('self')}.",
        "Subtract the maximum first, as softmax and logsumexp do, clamp the argument, or compute "
        "in logarithms" + ("; float32 goes up to 88.72." if at.dtype == "float16" else "."),
    )


def _power(operation: Operation, at: Element) -> Cause | None:
    name = "exponent" if at.name in ("pow", "float_power") else None
    base, exponent = at.operand("self"), 2.0 if name is None else at.operand("exponent")
    if base is None or exponent is None or not at.is_infinite or not isfinite(base):
        return None
    if base == 0 or not isfinite(exponent):
        return None
    try:
        value = abs(base) ** exponent
    except OverflowError:
        value = inf
    if value <= at.limit:
        return None
    what = f"{number(base) if base > 0 else f'({number(base)})'}^{number(exponent)} is "
    what += beyond(at, value) if isfinite(value) else f"beyond {limit(at)}"
    facts = at.facts("self", *([name] if name else []))
    return too_large(at, f"{what}: {facts}." if facts else f"{what}.")


def _cast(operation: Operation, at: Element) -> Cause | None:
    source = "src" if at.name == "copy" else "self"
    x = at.operand(source)
    if x is None or not at.is_infinite or not isfinite(x) or abs(x) <= at.limit:
        return None
    before = at.tensor(source)
    was = "" if before is None else f" from {str(before.dtype).removeprefix('torch.')}"
    where = f"the gradient{at.at} is {number(x)}" if at.is_backward else at.fact(source)
    found = too_large(
        at, f"The cast{was} to {at.dtype} overflows above {number(at.limit)}: {where}.", x
    )
    if at.dtype != "float16" or "GradScaler" in found.cure:
        return found
    return Cause(found.cause, "Leave it in float32, or use bfloat16, whose limit is 3.4e+38.")


def value_of(at: Element) -> tuple[float, str, tuple[str, ...]] | None:
    """What one element of a sum or product is in float64, how it is written, and its operands."""
    second = at.first("other", "scalar", "scalars") or "other"
    if at.name in ("addcmul", "addcdiv"):
        names: tuple[str, ...] = ("self", "tensor1", "tensor2")
    elif at.name == "lerp":
        names = ("self", at.first("end", "tensors1") or "end", "weight")
    else:
        names = ("self", second)
    given = [at.operand(name) for name in names]
    values = [value for value in given if value is not None]
    if len(values) != len(names) or not all(map(isfinite, values)):
        return None
    x, y, *z = values
    alpha = at.operand("alpha")
    alpha = 1.0 if alpha is None else alpha
    factor = at.operand(at.first("value", "scalars") or "value")
    factor = 1.0 if factor is None else factor
    try:
        match at.name:
            case "add":
                value = x + alpha * y
            case "sub":
                value = x - alpha * y
            case "rsub":
                value = y - alpha * x
            case "mul":
                value = x * y
            case "div":
                value = x / y
            case "addcmul":
                value = x + factor * y * z[0]
            case "addcdiv":
                value = x + factor * y / z[0]
            case "lerp":
                value = x + z[0] * (y - x)
            case _:
                value = hypot(x, y)
    except (OverflowError, ZeroDivisionError):
        return None
    return value, _written(at, x, y, z, alpha, factor), names


def _written(at: Element, x: float, y: float, z: list[float], alpha: float, factor: float) -> str:
    """The sum or product in numbers: "60000 + 2·30000"."""
    a, b, *c = map(number, (x, y, *z))
    match at.name:
        case "add" | "sub":
            return f"{a} {'+' if at.name == 'add' else '-'} {_times(alpha)}{b}"
        case "rsub":
            return f"{b} - {_times(alpha)}{a}"
        case "mul" | "div":
            return f"{a} {'·' if at.name == 'mul' else '/'} {b}"
        case "addcmul" | "addcdiv":
            return f"{a} + {_times(factor)}{b}{'·' if at.name == 'addcmul' else '/'}{c[0]}"
        case "lerp":
            return f"{a} + {c[0]}·({b} - {a})"
        case _:
            return f"{at.name}({a}, {b})"


def _times(factor: float) -> str:
    return "" if factor == 1 else f"{number(factor)}·"


def _elementwise(operation: Operation, at: Element) -> Cause | None:
    found = value_of(at) if at.is_infinite else None
    if found is None or abs(found[0]) <= at.limit:
        return None
    value, what, names = found
    size = beyond(at, value) if isfinite(value) else f"beyond {limit(at)}"
    return too_large(at, f"{what} is {size}: {at.facts(*names)}.", value)


def _erfcx(operation: Operation, at: Element) -> Cause | None:
    x = at.operand("self")
    if x is None or x >= 0 or not at.is_infinite or not isfinite(x):
        return None
    return Cause(
        f"erfcx grows like exp(x²) below 0 and overflows {at.dtype}: {at.fact('self')}.",
        "Use torch.special.log_ndtr, or erfc, for negative numbers.",
    )


RULES = (
    Rule("overflow of an exponential", frozenset(_EXPONENTIALS), _exponential, "pytorch#68425"),
    Rule(
        "overflow of a power",
        frozenset({"pow", "float_power", "square"}),
        _power,
        DOCS + "pow.html",
    ),
    Rule(
        "overflow of a cast", _CASTS, _cast, "https://docs.pytorch.org/docs/stable/type_info.html"
    ),
    Rule(
        "overflow of a sum or product",
        frozenset({"add", "sub", "rsub", "mul", "div", "addcmul", "addcdiv", "lerp", "hypot"}),
        _elementwise,
        "transformers#12225",
    ),
    Rule(
        "overflow of erfcx",
        frozenset({"special_erfcx"}),
        _erfcx,
        "https://docs.pytorch.org/docs/stable/special.html#torch.special.erfcx",
    ),
)
