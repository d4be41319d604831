"""Random conditions and random values for them, for the property tests of this folder."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from tensorpoint.conditions import Sample
from tensorpoint.conditions.evaluate import Lookup
from tensorpoint.conditions.tree import Input, metric_of

_NUMBERS = (
    'entropy("*")',
    "grad_norm()",
    "last(grad_norm())",
    "update_norm()",
    "loss",
    "last(loss)",
    "step",
    "optimizer_step",
)
_TRUTHS = ('nonfinite("*")', 'nonfinite("*", phase="input")', 'last(nonfinite("*"))', "True")
_LITERALS = ("0", "1", "2", "3", "10", "0.5", "0.1", "1e-3", "1e20", "1e308", "5e-324", "1e999")


def texts(depth: int = 3) -> st.SearchStrategy[str]:
    """Conditions with all operators, not all of them sensible."""
    number = st.sampled_from([*_NUMBERS, *_LITERALS])
    for _ in range(depth - 1):
        number = st.one_of(
            number,
            st.builds("({} {} {})".format, number, st.sampled_from("+-*/"), number),
            st.builds("-{}".format, number),
        )
    comparison = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])
    truth = st.one_of(
        st.sampled_from(_TRUTHS),
        st.builds("{} {} {}".format, number, comparison, number),
        st.builds("{} {} {} {} {}".format, number, comparison, number, comparison, number),
    )
    for _ in range(depth - 1):
        truth = st.one_of(
            truth,
            st.builds("({} {} {})".format, truth, st.sampled_from(["and", "or"]), truth),
            st.builds("(not {})".format, truth),
        )
    return truth


_SPECIAL = (0.0, 1.0, 0.5, 2.0, 3.0, 1e-300, 1e16, 1e308, -1.0, -1e308, math.inf, -math.inf)


def numbers() -> st.SearchStrategy[float]:
    """Floats with a liking for the awkward ones."""
    return st.one_of(st.sampled_from(_SPECIAL), st.just(math.nan), st.floats())


def within_range(source: Input, value: float) -> float | bool:
    """The value that this metric might have instead of `value`."""
    metric = metric_of(source)
    if metric.kind == "bool":
        return value > 0.5
    if metric.counter:
        return float(int(min(abs(value), 2.0**53))) if math.isfinite(value) else 0.0
    if math.isnan(value):
        return value
    low = value if metric.low is None else max(metric.low, value)
    return low if metric.high is None else min(metric.high, low)


def lookup_of(values: dict[Input, float | None]) -> Lookup:
    """A lookup of these values, None being unknown, all of one step."""

    def lookup(source: Input) -> Sample | None:
        value = values[source]
        return None if value is None else Sample(within_range(source, value), 5)

    return lookup
