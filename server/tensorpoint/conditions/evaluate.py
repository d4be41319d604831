"""The value of a condition at one moment, in three-valued logic.

This runs in hooks of the program, so a condition becomes closures once: evaluating it then costs 1
(`nonfinite("*")` alone) to 4 microseconds (four metrics), most of it for collecting the values.

Three values: True, False and None, "not known yet". A value is unknown if the lookup has none, if
it is of an older step than the newest value of this condition (unless the condition asks for
`last(...)` of it), and if it is a quotient by zero. `False and None` is False, `True or None` is
True, everything else with None in it is None. Numbers are floats and compare as IEEE says: NaN is
unequal to everything, and neither less nor greater.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from .tree import (
    And,
    Arithmetic,
    Compare,
    Condition,
    Input,
    Negate,
    Node,
    Not,
    Number,
    Or,
    Read,
    Truth,
    metric_of,
)


@dataclass(frozen=True)
class Sample:
    """A measured value and the step that it belongs to, None if to none: it is never too old.

    For `nonfinite` any number of non-finite elements may stand for True. The samples of `step` and
    `optimizer_step` belong to the current step.
    """

    value: float | int | bool
    step: int | None


Lookup = Callable[[Input], "Sample | None"]
Outcome = bool | None

_Values = Sequence["float | None"]
_Number = Callable[[_Values], "float | None"]
_Truth = Callable[[_Values], Outcome]
_Inputs = tuple[tuple[Input, bool], ...]


def evaluate(condition: Condition, lookup: Lookup) -> Outcome:
    """Whether the condition holds: True, False, or None if that is not known yet.

    `lookup` is asked for each of `condition.inputs`, a `MetricUse` or a plain name; for a use with
    `last` it answers with the newest value it has.
    """
    inputs, truth = _compiled(condition)
    return truth(_values(inputs, [lookup(source) for source, _ in inputs]))


def explain(condition: Condition, lookup: Lookup) -> str:
    """Each value that the condition reads, with its step: `grad_norm() = 12.5 (step 3), ...`."""
    inputs, _ = _compiled(condition)
    samples = [lookup(source) for source, _ in inputs]
    values = _values(inputs, samples)
    return ", ".join(
        _in_words(source, sample, stale=value is None)
        for (source, _), sample, value in zip(inputs, samples, values, strict=True)
    )


def false_up_to(condition: Condition, metric: str) -> float | None:
    """A number such that the condition isn't true while `metric` is at most that; None if unknown.

    `absmax("*") > 6e4 and step > 3` isn't true for an absmax of up to 6e4.
    """
    return _false_up_to(condition.tree, metric)


def _false_up_to(node: Node, metric: str) -> float | None:
    if isinstance(node, (And, Or)):
        found = [_false_up_to(item, metric) for item in node.items]
        known = [bound for bound in found if bound is not None]
        if isinstance(node, And):
            return max(known, default=None)
        return min(known) if len(known) == len(found) else None
    if isinstance(node, Compare) and len(node.ops) == 1:
        left, right = node.operands
        op = node.ops[0]
        if op == "<":
            left, right, op = right, left, ">"
        if op == ">" and isinstance(left, Read) and isinstance(right, Number):
            source = left.source
            if not isinstance(source, str) and source.metric == metric and not source.last:
                return _as_float(right.value)
    return None


def _in_words(source: Input, sample: Sample | None, *, stale: bool) -> str:
    name = source if isinstance(source, str) else source.text
    if sample is None:
        return f"{name} is not known yet"
    value = sample.value
    if isinstance(value, bool):
        written = "true" if value else "false"
    else:
        written = str(value) if isinstance(value, int) else f"{value:.6g}"
    if metric_of(source).counter or sample.step is None:
        return f"{name} = {written}"
    return f"{name} = {written} (step {sample.step}{', too old to count' if stale else ''})"


@lru_cache(maxsize=256)
def _compiled(condition: Condition) -> tuple[_Inputs, _Truth]:
    """The inputs, each with whether it is inside `last(...)`, and a function of their values."""
    inputs = tuple((s, not isinstance(s, str) and s.last) for s in condition.inputs)
    places = {source: place for place, source in enumerate(condition.inputs)}
    return inputs, _truth(condition.tree, places)


def _values(inputs: _Inputs, samples: Sequence[Sample | None]) -> _Values:
    """The samples' values, without those that are too old to be combined with the newest."""
    if len(samples) == 1:
        sample = samples[0]
        return [None if sample is None else _as_float(sample.value)]
    newest = -1
    for sample, (_, last) in zip(samples, inputs, strict=True):
        if sample is not None and not last and sample.step is not None and sample.step > newest:
            newest = sample.step
    return [
        None
        if sample is None or (not last and sample.step is not None and sample.step < newest)
        else _as_float(sample.value)
        for sample, (_, last) in zip(samples, inputs, strict=True)
    ]


def _as_float(value: float | int | bool) -> float:
    try:
        return float(value)
    except OverflowError:  # an int beyond the range of floats
        return float("inf") if value > 0 else float("-inf")


def _truth(node: Node, places: dict[Input, int]) -> _Truth:
    if isinstance(node, Truth):
        constant = node.value
        return lambda values: constant
    if isinstance(node, Read):
        place = places[node.source]
        return lambda values: None if (value := values[place]) is None else value != 0
    if isinstance(node, Not):
        item = _truth(node.item, places)
        return lambda values: None if (value := item(values)) is None else not value
    if isinstance(node, (And, Or)):
        items = tuple(_truth(item, places) for item in node.items)
        return _joined(items, ending=isinstance(node, Or))
    assert isinstance(node, Compare)
    operands = tuple(_number(operand, places) for operand in node.operands)
    links = tuple(
        _link(_COMPARISONS[op], left, right)
        for op, (left, right) in zip(node.ops, pairwise(operands), strict=True)
    )
    return links[0] if len(links) == 1 else _joined(links, ending=False)


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _joined(items: tuple[_Truth, ...], *, ending: bool) -> _Truth:
    """`or` if `ending` is True, else `and`: the first item with that value decides."""

    def joined(values: _Values) -> Outcome:
        outcome: Outcome = not ending
        for item in items:
            value = item(values)
            if value is ending:
                return ending
            if value is None:
                outcome = None
        return outcome

    return joined


def _link(compare: Callable[[float, float], bool], left: _Number, right: _Number) -> _Truth:
    def link(values: _Values) -> Outcome:
        a, b = left(values), right(values)
        return None if a is None or b is None else compare(a, b)

    return link


def _number(node: Node, places: dict[Input, int]) -> _Number:
    if isinstance(node, Number):
        constant = _as_float(node.value)
        return lambda values: constant
    if isinstance(node, Read):
        return operator.itemgetter(places[node.source])
    if isinstance(node, Negate):
        item = _number(node.item, places)
        return lambda values: None if (value := item(values)) is None else -value
    assert isinstance(node, Arithmetic)
    compute = _ARITHMETIC[node.op]
    left, right = _number(node.left, places), _number(node.right, places)

    def computed(values: _Values) -> float | None:
        a, b = left(values), right(values)
        return None if a is None or b is None else compute(a, b)

    return computed


def _quotient(a: float, b: float) -> float | None:
    return None if b == 0 else a / b


_ARITHMETIC: dict[str, Callable[[float, float], float | None]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
}
