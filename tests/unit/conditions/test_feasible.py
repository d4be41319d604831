"""Conditions that can never hold are found, with the range that says so; no others are."""

from __future__ import annotations

import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tensorpoint.conditions import evaluate, parse
from tensorpoint.conditions.feasible import ask_z3, unsatisfiable
from tensorpoint.conditions.tree import Input
from tests.unit.conditions.strategies import lookup_of, numbers, texts


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('entropy("*") > 1', 'entropy is between 0 and 1, so entropy("*") > 1 can never hold'),
        ("grad_norm() < 0", "grad_norm is at least 0, so grad_norm() < 0 can never hold"),
        (
            "nonfinite() and absmax() < 0 and loss > 2",
            'absmax is at least 0, so absmax("*") < 0 can never hold',
        ),
        (
            "step > 3 and step < 4",
            "step is a whole number of at least 0, so step > 3 and step < 4 can never hold",
        ),
        (
            "zero_fraction() + entropy() > 2",
            "zero_fraction is between 0 and 1 and entropy is between 0 and 1, "
            'so zero_fraction("*") + entropy("*") > 2 can never hold',
        ),
        (
            "1 / entropy() < 1",
            'entropy is between 0 and 1, so 1 / entropy("*") < 1 can never hold',
        ),
        ("entropy() + 0.1 > 1.1", "entropy is between 0 and 1"),
        ("entropy() * 2 > 2", "entropy is between 0 and 1"),
        ("grad_norm() * update_norm() < 0", "grad_norm is at least 0 and update_norm is at least"),
        ("loss > 10 and loss < 5", "loss > 10 and loss < 5 can never hold, whatever the values"),
        ("nonfinite() and not nonfinite()", "can never hold, whatever the values are"),
        ("last(loss) > 3 and last(loss) < 2", "can never hold"),
        ("grad_norm() + 1 < grad_norm()", "can never hold"),
        ("loss / 0 > 1", "can never hold"),
        ("absmax() > 1e400", "can never hold"),
        ("not (loss == loss) and loss > 1", "can never hold"),
        ("loss * loss < 0", "can never hold"),
        ("step * step == 2", "step is a whole number"),
        ("False", "False can never hold"),
    ],
)
def test_impossible_condition_is_refused_with_the_reason(text: str, reason: str) -> None:
    found = unsatisfiable(parse(text, need_metric=False))
    assert found is not None
    assert reason in found


@pytest.mark.parametrize(
    "text",
    [
        "nonfinite()",
        "True",
        "entropy() >= 1",
        "not (entropy() <= 1)",  # at NaN
        "loss != loss",  # at NaN
        "not (loss < 10) and not (loss >= 10)",  # at NaN
        "absmax() >= 1e400",  # at inf
        "grad_norm() == grad_norm() + 1",  # at inf
        "loss - loss != 0",  # inf - inf
        "loss + 1 == loss and loss < 1e300",  # rounding
        "entropy() + 1e20 == 1e20 and entropy() > 0.5",  # rounding
        "loss * 1e300 == 1e308 * 10 and loss < 1e300",  # overflow
        "loss * 1e-300 == 0 and loss > 0",  # underflow
        "loss > 3 and last(loss) < 2",
        'nonfinite("h", phase="input") and not nonfinite("h", phase="forward")',
        "nonfinite() and not last(nonfinite())",
        "nonfinite() or entropy() > 1",
        "memory_growth() < -2e8",
        "step == 123456789",
        "loss / 0 > 1 or nonfinite()",
    ],
)
def test_possible_condition_is_not_refused(text: str) -> None:
    condition = parse(text, need_metric=False)
    assert unsatisfiable(condition) is None
    assert ask_z3(condition) is None


def test_question_that_z3_cannot_answer_is_let_through_in_bounded_time() -> None:
    cubes = "step * step * step + optimizer_step * optimizer_step * optimizer_step"
    began = time.monotonic()
    assert (
        unsatisfiable(parse(f"nonfinite() and {cubes} == 24389 and step > 0 < optimizer_step"))
        is None
    )
    assert time.monotonic() - began < 20


def test_long_condition_is_let_through() -> None:
    text = " and ".join(f"loss * {n} > {n} * loss + 1" for n in range(40))
    assert unsatisfiable(parse(text)) is None


@settings(max_examples=40, deadline=None)
@given(texts(2), st.data())
def test_condition_that_holds_for_some_values_is_never_refused(
    text: str, data: st.DataObject
) -> None:
    condition = parse(text, need_metric=False)
    values: dict[Input, float | None] = {s: data.draw(numbers()) for s in condition.inputs}
    assume(evaluate(condition, lookup_of(values)) is True)
    assert ask_z3(condition) is None
