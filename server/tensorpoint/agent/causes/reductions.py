"""Sums, means, norms, products and variances: of nothing, of one element, beyond the limit."""

from __future__ import annotations

from math import inf, isfinite, sqrt
from typing import Any

from ..ops.cause import Cause
from ..ops.operation import Operation
from .element import Element
from .overflow import beyond, limit, too_large
from .rule import DOCS, Rule
from .values import exact
from .words import count, number, place

_VARIANCES = frozenset({"var", "std", "var_mean", "std_mean"})
_NORMS = frozenset({"linalg_vector_norm", "norm"})


def _variance_of_one(operation: Operation, at: Element) -> Cause | None:
    """A variance that divides by n - correction = 0."""
    found = at.reduced("self")
    if found is None or isfinite(at.value):
        return None
    values, where = found
    correction = _correction(operation.arguments)
    if len(values) - correction > 0:
        return None
    return Cause(
        f"The variance of {count(len(values), 'element')} ({at.called('self')}{where}) with "
        f"correction {number(correction)} divides by {number(max(len(values) - correction, 0))}.",
        "Pass correction=0 (unbiased=False), or don't take it of a single element.",
    )


def _correction(arguments: dict[str, Any]) -> float:
    given = arguments.get("correction")
    if given is not None:
        return float(given)
    return 0.0 if arguments.get("unbiased") is False else 1.0


def _variance_overflow(operation: Operation, at: Element) -> Cause | None:
    found = at.reduced("self")
    if found is None or isfinite(at.value):
        return None
    values, where = found
    squares = float((values - values.mean()).square().sum())
    if not isfinite(squares) or squares <= at.limit:
        return None
    return too_large(
        at,
        f"The squares of the deviations in {at.called('self')}{where} add up to "
        f"{beyond(at, squares)}.",
    )


def _mean_of_nothing(operation: Operation, at: Element) -> Cause | None:
    found = at.reduced("self")
    if found is None or not at.is_nan or len(found[0]):
        return None
    return Cause(
        f"The {at.name} of no elements is NaN: {at.called('self')} has the shape "
        f"{list(operation.arguments['self'].shape)}.",
        "Skip what is empty, such as a batch or a selection by a mask that is nowhere true.",
    )


def _sum(operation: Operation, at: Element) -> Cause | None:
    """A sum beyond the limit of the type, and one over infinities of both signs."""
    found = at.reduced("self")
    if found is None:
        return None
    values, where = found
    what = f"{at.called('self')}{where}"
    if at.is_nan and not bool(values.isnan().any()):
        up, down = int((values == inf).sum()), int((values == -inf).sum())
        if not (up and down):
            return None
        return Cause(
            f"inf - inf is NaN: {what} holds {up} of inf and {down} of -inf.",
            "Look for where they became infinite.",
        )
    total = float(values.sum())
    if not at.is_infinite or not isfinite(total) or abs(total) <= at.limit:
        return None
    divided = "" if at.name == "sum" else ", before it is divided"
    return too_large(
        at,
        f"The sum over {count(len(values), 'element')} of {what} is {beyond(at, total)}{divided}.",
    )


def _running(operation: Operation, at: Element) -> Cause | None:
    """A cumulative sum or product that gets beyond the limit."""
    dim = operation.arguments.get("dim")
    if not isinstance(dim, int) or not at.is_infinite or not at.index:
        return None
    row = at.along("self", dim)
    if row is None:
        return None
    size = at.index[dim] + 1
    part = row[:size]
    total = float(part.sum() if at.name == "cumsum" else part.prod())
    if not bool(part.isfinite().all()) or abs(total) <= at.limit:
        return None
    kind = "sum" if at.name == "cumsum" else "product"
    size_ = beyond(at, total) if isfinite(total) else f"beyond {limit(at)}"
    return too_large(
        at,
        f"The {kind} of the first {count(size, 'element')} of {at.called('self')}"
        f"{at.row_place(dim)} is {size_}.",
    )


def _product(operation: Operation, at: Element) -> Cause | None:
    found = at.reduced("self")
    if found is None or not at.is_infinite:
        return None
    values, where = found
    if not bool(values.isfinite().all()) or bool((values == 0).any()):
        return None
    total = float(values.prod())
    if abs(total) <= at.limit:
        return None
    size = beyond(at, total) if isfinite(total) else f"beyond {limit(at)}"
    return Cause(
        f"The product of {count(len(values), 'element')} of {at.called('self')}{where} is {size}.",
        "Add logarithms in place of multiplying: x.abs().log().sum().",
    )


def _norm(operation: Operation, at: Element) -> Cause | None:
    """A 2-norm whose squares, or which itself, is beyond the limit."""
    order = at.operand(at.first("ord", "p") or "ord")
    found = at.reduced("self")
    if found is None or not at.is_infinite or order not in (None, 2.0):
        return None
    values, where = found
    if not len(values) or not bool(values.isfinite().all()):
        return None
    squares, largest = float(values.square().sum()), float(values.abs().max())
    what = f"{at.called('self')}{where}, whose largest element is {number(largest)}"
    if not squares > at.limit:
        return None
    if isfinite(squares) and sqrt(squares) > at.limit:
        cause = f"The norm of {what}, is {beyond(at, sqrt(squares))}."
        found = too_large(at, cause)
    else:
        size = beyond(at, squares) if isfinite(squares) else f"beyond {limit(at)}"
        cause = f"The squares in the norm of {what}, add up to {size}."
        found = Cause(cause, "Scale before: s = x.abs().max(); s * (x / s).norm().")
    if operation.phase != "update":
        return found
    return Cause(
        cause,
        "Clipping by such a norm sets all gradients to 0: look for what makes the gradient so "
        "large, or clip by value first.",
    )


def _distance(operation: Operation, at: Element) -> Cause | None:
    """Distances of points whose squares overflow."""
    first, second = at.tensor("x1"), at.tensor("x2")
    if first is None or second is None or not at.is_infinite or len(at.index) != 2:
        return None
    if first.dim() != 2 or second.dim() != 2:
        return None
    i, j = at.index
    squares = float((exact(first[i]) - exact(second[j])).square().sum())
    if squares <= at.limit:
        return None
    return too_large(
        at,
        f"The squares in the distance of {at.called('x1')}{place((i, ':'))} and "
        f"{at.called('x2')}{place((j, ':'))} add up to {beyond(at, squares)}.",
    )


RULES = (
    Rule("variance of one element", _VARIANCES, _variance_of_one, DOCS + "var.html"),
    Rule("overflow of a variance", _VARIANCES, _variance_overflow, DOCS + "var.html"),
    Rule(
        "mean of nothing",
        frozenset({"mean", "median", "nanmedian"}),
        _mean_of_nothing,
        DOCS + "mean.html",
    ),
    Rule("sum of many elements", frozenset({"sum", "mean", "nansum"}), _sum, DOCS + "sum.html"),
    Rule(
        "running sum or product", frozenset({"cumsum", "cumprod"}), _running, DOCS + "cumprod.html"
    ),
    Rule("overflow of a product", frozenset({"prod"}), _product, DOCS + "prod.html"),
    Rule("overflow of a norm", _NORMS, _norm, DOCS + "linalg.vector_norm.html"),
    Rule(
        "overflow of a distance",
        frozenset({"_cdist_forward", "cdist", "_euclidean_dist"}),
        _distance,
        DOCS + "cdist.html",
    ),
)
