"""Backward passes: infinite slopes, and gradients of 0 that meet them (double where).

A rule here is found by the backward node. Where the forward operation is known its argument and
value are looked at, else the operands of the backward's own operation tell as much: autograd's
formulas divide by what is 0 at the border.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite, isinf

from ..ops.cause import Cause
from ..ops.operation import Operation
from .element import Element
from .names import bare, forward_name, node_kind
from .rule import DOCS, Rule
from .words import number, place


@dataclass(frozen=True)
class Slope:
    """A function whose slope is infinite somewhere in its domain, or at its border."""

    #: As the sentence calls it: "sqrt at 0".
    what: str
    #: Where, by the value of `of`.
    steep: Callable[[float], bool]
    cure: str
    #: The argument of the forward operation that is meant, "" for its result.
    of: str = "self"


_LOG = "Clamp the argument of the logarithm, or use log_softmax or logsigmoid for probabilities."
_CLAMP = "Clamp the argument a little inside, such as x.clamp(-1 + 1e-6, 1 - 1e-6)."
_ROOT = (
    "Add a small number inside, sqrt(x + eps); for a norm use torch.linalg.vector_norm, whose "
    "gradient at 0 is 0."
)


def _zero(x: float) -> bool:
    return x == 0


def _unit(x: float) -> bool:
    return abs(x) == 1


SLOPES: dict[str, Slope] = {
    "AcosBackward": Slope("acos at ±1", _unit, _CLAMP),
    "AcoshBackward": Slope("acosh at 1", lambda x: x == 1, "Clamp it, x.clamp_min(1 + 1e-6)."),
    "AsinBackward": Slope("asin at ±1", _unit, _CLAMP),
    "AtanhBackward": Slope("atanh at ±1", _unit, _CLAMP),
    "DistBackward": Slope("the distance at 0", _zero, _ROOT, ""),
    "ErfinvBackward": Slope("erfinv at ±1", _unit, _CLAMP),
    "HypotBackward": Slope(
        "hypot at (0, 0)", _zero, "Add a small number inside: sqrt(x² + y² + eps).", ""
    ),
    "LinalgVectorNormBackward": Slope("the norm at 0", _zero, _ROOT, ""),
    "Log10Backward": Slope("log10 at 0", _zero, _LOG),
    "Log1PBackward": Slope("log1p at -1", lambda x: x == -1, _LOG),
    "Log2Backward": Slope("log2 at 0", _zero, _LOG),
    "LogBackward": Slope("log at 0", _zero, _LOG),
    "LogitBackward": Slope(
        "logit at 0 and 1", lambda x: x in (0, 1), "Pass eps, torch.logit(x, eps=1e-6)."
    ),
    "NormBackward": Slope("the norm at 0", _zero, _ROOT, ""),
    "PowBackward": Slope(
        "the power at 0", _zero, "Add a small number to the base: (x + eps) ** p."
    ),
    "ReciprocalBackward": Slope("1/x at 0", _zero, "Clamp the divisor, or add a small number."),
    "RsqrtBackward": Slope("rsqrt at 0", _zero, "Add a small number inside: (x + eps).rsqrt()."),
    "SpecialEntrBackward": Slope("entr at 0", _zero, "Clamp it: x.clamp_min(eps)."),
    "SqrtBackward": Slope("sqrt at 0", _zero, _ROOT),
    "StdBackward": Slope("std at 0", _zero, "Take sqrt(x.var() + eps) in place of x.std().", ""),
    "XlogyBackward": Slope("xlogy(x, y) at y = 0", _zero, "Clamp y, y.clamp_min(eps).", "other"),
}
#: Functions that are infinite or NaN where their slope is, too.
_DROPPED = frozenset(
    {
        *SLOPES,
        "CoshBackward",
        "DivBackward",
        "Exp2Backward",
        "ExpBackward",
        "Expm1Backward",
        "SinhBackward",
        "SpecialErfcxBackward",
    }
)
#: Nodes in whose formula a division does not divide the gradient that arrives.
_DIVIDES_OTHERS = frozenset(
    {
        "DistBackward",
        "DivBackward",
        "HypotBackward",
        "LinalgVectorNormBackward",
        "NormBackward",
        "XlogyBackward",
    }
)
#: Functions that take the root of a norm that is written by hand.
_ROOTS = frozenset({"PowBackward", "SqrtBackward"})
_DOUBLE_WHERE = (
    "Make the argument harmless before the operation too, where its value is not wanted: "
    "safe = torch.where(ok, x, 1.0); torch.where(ok, f(safe), 0.0)."
)


def _double_where(operation: Operation, at: Element) -> Cause | None:
    """A value that isn't wanted was dropped after the operation; its gradient is 0·inf."""
    gradient = _arriving(at)
    if gradient not in (None, 0):
        return None
    forward = at.forward
    if forward is not None and not isfinite(forward.value) and _made_bad(forward):
        facts = forward.facts("self", "other", "exponent")
        value = number(forward.value)
        return Cause(
            f"{forward.name} made {value} in the forward{at.at} ({facts}), and its gradient is "
            "computed from that: where or a mask drops the value afterwards, but not the gradient, "
            f"in which 0 times {value} is NaN.",
            _DOUBLE_WHERE,
        )
    if gradient is None or not at.is_nan:
        return None
    name = forward_name(operation.node or "")
    return Cause(
        f"The slope of {name} is infinite{at.at}, and the gradient that arrives there is 0, as "
        "where or a mask leave it that drop the value: 0·inf is NaN.",
        _DOUBLE_WHERE,
    )


def _made_bad(forward: Element) -> bool:
    """Whether the forward operation made the value, of operands that are finite there."""
    values = [forward.operand(name) for name in forward.operation.arguments]
    return all(value is None or isfinite(value) for value in values)


def _arriving(at: Element) -> float | None:
    """The gradient that came into the node, if this operation takes it and an infinite slope."""
    x, y = at.operand("self"), at.operand("other")
    if at.name == "logit_backward":
        return at.operand("grad_output")
    if at.name == "div" and y == 0 and at.node not in _DIVIDES_OTHERS:
        return x
    if at.name == "mul" and x is not None and y is not None and isfinite(x) and not isfinite(y):
        return x
    return None


def _slope(operation: Operation, at: Element) -> Cause | None:
    """An infinite slope of a function at the border of its domain."""
    slope = SLOPES[at.node]
    if not _is_steep(at, slope):
        return None
    forward = at.forward
    if forward is None:
        fact = f"there it is{at.at}" if at.index else "there it is"
    elif slope.of:
        fact = forward.facts("self", "other", "exponent")
    else:
        fact = f"its value{at.at} is {number(forward.value)}"
    return Cause(f"The slope of {slope.what} is infinite: {fact}.", slope.cure)


def _is_steep(at: Element, slope: Slope) -> bool:
    forward = at.forward
    if forward is not None:
        x = forward.operand(slope.of) if slope.of else forward.value
        if x is not None:
            return slope.steep(x)
    x = at.operand("self")
    if at.name == "div":
        return at.operand("other") == 0
    if at.name in ("log", "reciprocal", "rsqrt"):
        return x == 0
    if at.name == "pow":
        exponent = at.operand("exponent")
        return x == 0 and exponent is not None and exponent < 0
    return at.name in ("erfinv", "logit_backward") and x is not None and slope.steep(x)


def _norm_by_hand(operation: Operation, at: Element) -> Cause | None:
    """sqrt of a sum of squares at 0: the slope of the root is infinite, that of the squares 0."""
    x, y = at.operand("self"), at.operand("other")
    if at.name != "mul" or not at.is_nan or x is None or y is None:
        return None
    if {0.0, inf} != {abs(x), abs(y)}:
        return None
    source = at.root("self" if isinf(x) else "other")
    if source is None or source.phase != "backward" or bare(source.name) not in ("div", "pow"):
        return None
    if node_kind(source.node or "") not in _ROOTS:
        return None
    return Cause(
        "The root of a square or product has no gradient at 0: the slope of the root is infinite, "
        f"that of what is under it{at.at} is 0, and 0·inf is NaN.",
        "For a norm use torch.linalg.vector_norm, whose gradient at 0 is 0, or add a small number "
        "inside: (x * x).sum().add(1e-12).sqrt().",
    )


def _softmax(operation: Operation, at: Element) -> Cause | None:
    """The logarithm of a softmax that is 0."""
    dim = operation.arguments.get("dim")
    if not isinstance(dim, int) or not at.is_nan:
        return None
    gradients, values = at.along("grad_output", dim), at.along("output", dim)
    if gradients is None or values is None or not bool(gradients.isinf().any()):
        return None
    k = int(gradients.isinf().byte().argmax())
    where = place([k if isinstance(item, slice) else item for item in at.row(dim)])
    source = at.root("grad_output")
    logarithm = source is not None and node_kind(source.node or "").startswith("Log")
    value = number(float(values[k]))
    if logarithm:
        return Cause(
            f"The softmax{where} is {value}, where the slope of the logarithm is infinite, and "
            "0·inf is NaN.",
            "Use log_softmax (or cross_entropy on the logits) in place of log(softmax(x)).",
        )
    return Cause(
        f"The gradient that reaches the softmax is {number(float(gradients[k]))}{where}, where its "
        f"value is {value}: 0·inf or inf - inf is NaN.",
        "Look for what made the gradient infinite: it comes from what is computed of the softmax.",
    )


RULES = (
    Rule(
        "norm by hand at 0",
        frozenset({"PowBackward", "MulBackward"}),
        _norm_by_hand,
        "pytorch#2421",
    ),
    Rule("double where", _DROPPED, _double_where, "pytorch#68425"),
    Rule("infinite slope", frozenset(SLOPES), _slope, "pytorch#8069"),
    Rule(
        "log of a softmax of 0",
        frozenset({"_softmax_backward_data", "SoftmaxBackward"}),
        _softmax,
        DOCS + "nn.functional.log_softmax.html",
    ),
)
