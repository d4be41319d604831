"""Functions outside of their domain or at its border: log(0), sqrt(-1), acos(1.2), atanh(1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isinf

from ..ops.cause import Cause
from ..ops.operation import Operation
from .element import Element
from .rule import DOCS, Rule
from .words import number


@dataclass(frozen=True)
class Edge:
    """A function of one argument, and where it has no finite value."""

    function: str
    #: Where it is infinite.
    pole: Callable[[float], bool]
    #: Where it isn't a number.
    outside: Callable[[float], bool]
    #: What it is for, in words.
    domain: str
    cure: str


def _never(x: float) -> bool:
    return False


def _is_pole_of_gamma(x: float) -> bool:
    return x <= 0 and x.is_integer()


_LOG = (
    "Clamp the argument, such as x.clamp_min(torch.finfo(x.dtype).tiny), or, if it is a "
    "probability, use log_softmax or logsigmoid in place of the logarithm, and torch.xlogy(p, p) "
    "in place of p * log(p)."
)
_ROOT = (
    "Clamp the argument, x.clamp_min(0); a variance computed as E[x²] - E[x]² is better x.var()."
)
_INVERSE = "Add a small number inside, such as x + eps, that is not 0 in the type of the argument."
_CLAMP = "Clamp the argument to {inside} with an eps that the type of the argument can tell from 0."
_UNIT = _CLAMP.format(inside="[-1 + eps, 1 - eps]")
_POLE = "Keep the argument above 0, such as x.clamp_min(eps)."

EDGES: dict[str, Edge] = {
    **{
        name: Edge(name, lambda x: x == 0, lambda x: x < 0, "numbers above 0", _LOG)
        for name in ("log", "log2", "log10")
    },
    "log1p": Edge("log1p", lambda x: x == -1, lambda x: x < -1, "numbers above -1", _LOG),
    "sqrt": Edge("sqrt", _never, lambda x: x < 0, "numbers from 0 on", _ROOT),
    "rsqrt": Edge("rsqrt", lambda x: x == 0, lambda x: x < 0, "numbers above 0", _INVERSE),
    "reciprocal": Edge("1/x", lambda x: x == 0, _never, "numbers other than 0", _INVERSE),
    "acos": Edge("acos", _never, lambda x: abs(x) > 1, "numbers from -1 to 1", _UNIT),
    "asin": Edge("asin", _never, lambda x: abs(x) > 1, "numbers from -1 to 1", _UNIT),
    "acosh": Edge(
        "acosh", _never, lambda x: x < 1, "numbers from 1 on", "Clamp it, x.clamp_min(1)."
    ),
    "atanh": Edge(
        "atanh", lambda x: abs(x) == 1, lambda x: abs(x) > 1, "numbers between -1 and 1", _UNIT
    ),
    "erfinv": Edge(
        "erfinv", lambda x: abs(x) == 1, lambda x: abs(x) > 1, "numbers between -1 and 1", _UNIT
    ),
    "logit": Edge(
        "logit",
        lambda x: x in (0, 1),
        lambda x: not 0 <= x <= 1,
        "numbers between 0 and 1",
        "Pass eps, torch.logit(x, eps=1e-6), or keep the logits from which x was computed.",
    ),
    "special_ndtri": Edge(
        "ndtri",
        lambda x: x in (0, 1),
        lambda x: not 0 <= x <= 1,
        "numbers between 0 and 1",
        _CLAMP.format(inside="[eps, 1 - eps]"),
    ),
    "lgamma": Edge("lgamma", _is_pole_of_gamma, _never, "numbers other than 0, -1, -2, ...", _POLE),
    "digamma": Edge(
        "digamma", lambda x: x == 0, _is_pole_of_gamma, "numbers other than 0, -1, -2, ...", _POLE
    ),
    "polygamma": Edge(
        "polygamma",
        _is_pole_of_gamma,
        _is_pole_of_gamma,
        "numbers other than 0, -1, -2, ...",
        _POLE,
    ),
    **{
        name: Edge(
            name, _never, isinf, "finite numbers", "Look for where the argument became infinite."
        )
        for name in ("sin", "cos", "tan")
    },
}


def _edge(operation: Operation, at: Element) -> Cause | None:
    edge, x = EDGES[at.name], at.operand("self")
    if x is None:
        return None
    if edge.pole(x) and at.is_infinite:
        what = f"{edge.function} of {number(x)} is {number(at.value)}"
    elif edge.outside(x) and at.is_nan:
        what = f"{edge.function} of {number(x)} is NaN, since it is for {edge.domain}"
    else:
        return None
    return Cause(f"{what}: {at.fact('self')}{at.rounding if x == 0 else ''}.", edge.cure)


def _power(operation: Operation, at: Element) -> Cause | None:
    """A negative number to a broken power, 0 to a negative one."""
    base, exponent = at.operand("self"), at.operand("exponent")
    if base is None or exponent is None:
        return None
    facts = at.facts("self", "exponent")
    if base < 0 and at.is_nan and not exponent.is_integer():
        return Cause(
            f"A negative number has no power {number(exponent)}: {facts}.",
            "Clamp the base, x.clamp_min(0), or use x.sign() * x.abs() ** p.",
        )
    if base == 0 and exponent < 0 and at.is_infinite:
        return Cause(
            f"0 to the power {number(exponent)} is {number(at.value)}: {facts}{at.rounding}.",
            "Add a small number to the base that is not 0 in its type, (x + eps) ** p.",
        )
    return None


def _xlogy(operation: Operation, at: Element) -> Cause | None:
    """x·log(y), which is 0 for x = 0 and otherwise has the logarithm's domain."""
    x, y = at.operand("self"), at.operand("other")
    if x is None or y is None:
        return None
    shift = 1 if at.name == "special_xlog1py" else 0
    term = "x·log(1 + y)" if shift else "x·log(y)"
    if y + shift == 0 and x != 0 and at.is_infinite:
        what = f"{term} is {number(at.value)} where the logarithm is of 0 and x is not"
    elif y + shift < 0 and at.is_nan:
        what = f"{term} has no value where the logarithm is of a negative number"
    else:
        return None
    return Cause(
        f"{what}: {at.facts('self', 'other')}.",
        "Clamp the second operand to what has a logarithm, y.clamp_min(eps).",
    )


RULES = (
    Rule(
        "domain of a function",
        frozenset(EDGES),
        _edge,
        DOCS + "log.html",
    ),
    Rule("power of 0 or a negative", frozenset({"pow", "float_power"}), _power, DOCS + "pow.html"),
    Rule(
        "xlogy at the border",
        frozenset({"xlogy", "special_xlog1py"}),
        _xlogy,
        "https://docs.pytorch.org/docs/stable/special.html#torch.special.xlogy",
    ),
)
