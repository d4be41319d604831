"""Conditions of data breakpoints: what they mean, and what is refused."""

from __future__ import annotations

import pytest

from tensorpoint.conditions import ConditionError
from tensorpoint.conditions.data import MODES, WORDS, parse_data
from tensorpoint.conditions.hits import parse_hits


@pytest.mark.parametrize(
    ("text", "values", "outcome"),
    [
        ("", {"changed": True}, True),
        ("changed()", {"changed": False}, False),
        ("nonfinite and step > 100", {"nonfinite": True, "step": 101}, True),
        ("nonfinite and step > 100", {"nonfinite": True, "step": 100}, False),
        ("not changed or norm > 3", {"changed": True, "norm": 3.5}, True),
        ("-1 < norm <= 3", {"norm": 3}, True),
        ("norm > 3", {"norm": None}, None),
        ("nonfinite or norm > 3", {"nonfinite": True, "norm": None}, True),
        ("nonfinite and norm > 3", {"nonfinite": False, "norm": None}, False),
        ("absmax != 2", {"absmax": 2.0}, False),
    ],
)
def test_what_a_condition_means(
    text: str, values: dict[str, float | bool | None], outcome: bool | None
) -> None:
    assert parse_data(text).holds(lambda word: values[word]) is outcome


def test_only_the_words_that_are_read_are_asked_for() -> None:
    assert parse_data("norm > 1 and changed").words == {"norm", "changed"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("norm", "norm is a number: compare it"),
        ("changed > 1", "changed is true or false"),
        ("norm = 3", '"=="'),
        ("nomr > 3", "did you mean norm"),
        ("os.system('x')", "expected a condition"),
        ("norm('fc') > 3", "takes no argument"),
        ("norm > 'a'", "expected a number"),
        ("norm in 3", "compare by"),
        ("(lambda: 1)()", "expected a condition"),
    ],
)
def test_what_is_refused_and_why(text: str, message: str) -> None:
    with pytest.raises(ConditionError) as refused:
        parse_data(text)
    assert message in refused.value.message


def test_modes_are_words_of_the_language() -> None:
    assert set(MODES) < set(WORDS)
    for mode in MODES:
        assert parse_data(mode).text == mode


@pytest.mark.parametrize(
    ("text", "hits", "fires"),
    [("", 1, True), ("3", 3, True), ("3", 4, False), (">= 3", 4, True), ("% 2", 4, True)],
)
def test_hit_counts(text: str, hits: int, fires: bool) -> None:
    assert parse_hits(text)(hits) is fires
