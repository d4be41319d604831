"""Sampling from what is no distribution: torch raises, and what reached it is what is wrong."""

from __future__ import annotations

import sys
from math import inf, isfinite

from ..ops.cause import Cause
from ..ops.operation import Operation
from .element import Element
from .names import bare
from .rule import DOCS, Rule
from .values import numbers_of, unravel
from .words import number, place

#: By operation: what its argument is called, and the largest allowed; the smallest is 0.
_ARGUMENTS = {
    "bernoulli": ("probability", 1.0),
    "multinomial": ("probability", inf),
    "poisson": ("rate", inf),
}


def _weights(operation: Operation, at: Element) -> Cause | None:
    """An element that is NaN, infinite, negative or too large; or weights that are all 0."""
    torch = sys.modules["torch"]
    values = numbers_of(operation.arguments.get("self"))
    if values is None or not values.is_floating_point() or values.numel() == 0:
        return None
    what, most = _ARGUMENTS[bare(operation.name)]
    bad = ~torch.isfinite(values)
    if not bool(bad.any()):
        bad = (values < 0) | (values > most)
    if bool(bad.any()):
        index = unravel(int(bad.reshape(-1).byte().argmax()), values.shape)
        value = float(values[index].item())
        problem = "not finite" if not isfinite(value) else "negative" if value < 0 else "above 1"
        cause = f"{operation.name} got a {what} that is {problem}: {at.called('self')}"
        cause += f"{place(index)} is {number(value)}"
        return Cause(f"{cause}{_origin(at)}.", _cure(problem))
    if bare(operation.name) != "multinomial":
        return None
    empty = ~(values > 0).any(-1)
    if not bool(empty.any()):
        return None
    row = unravel(int(empty.reshape(-1).byte().argmax()), empty.shape)
    return Cause(
        f"multinomial got probabilities that are all 0: {at.called('self')}{place([*row, ':'])}.",
        "Leave at least one choice: check what masks, top-k or top-p leave of a row.",
    )


def _origin(at: Element) -> str:
    source = at.origin("self")
    return "" if source is None else f", which {source.name} made"


def _cure(problem: str) -> str:
    if problem == "negative":
        return "Pass probabilities, softmax of the logits, not the logits themselves."
    return (
        "Look for the layer that made it: the logits were not finite, or a row was masked as a "
        "whole, before the softmax."
    )


RULES = (
    Rule(
        "no distribution to sample from",
        frozenset(_ARGUMENTS),
        _weights,
        DOCS + "multinomial.html",
        raises=True,
    ),
)
