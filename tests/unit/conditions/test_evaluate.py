"""The value of conditions: three-valued logic, IEEE numbers, steps, and the words for a stop."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tensorpoint.conditions import MetricUse, Sample, evaluate, explain, parse
from tensorpoint.conditions.evaluate import Lookup
from tensorpoint.conditions.tree import Input, Read, text_of
from tests.unit.conditions.strategies import lookup_of, numbers, texts, within_range

NAN, INF = math.nan, math.inf


def known(**values: Sample | float | bool) -> Lookup:
    """A lookup by metric name; plain values are of step 7, and `last_x` is for `last(x)`."""

    def lookup(source: Input) -> Sample | None:
        name = source if isinstance(source, str) else "last_" * source.last + source.metric
        value = values.get(name)
        return value if value is None or isinstance(value, Sample) else Sample(value, 7)

    return lookup


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nonfinite() and grad_norm() > 1", None),
        ("not nonfinite() and grad_norm() > 1", False),
        ("grad_norm() > 1 and not nonfinite()", False),
        ("nonfinite() or grad_norm() > 1", True),
        ("grad_norm() > 1 or nonfinite()", True),
        ("grad_norm() > 1 or not nonfinite()", None),
        ("not grad_norm() > 1", None),
        ("grad_norm() > 1", None),
        ("loss < 3 < grad_norm()", None),
        ("grad_norm() < 3 < loss", False),
        ("loss + grad_norm() > 1", None),
        ("grad_norm() != grad_norm()", None),
        ("True or grad_norm() > 1", True),
    ],
)
def test_unknown_values_decide_nothing(text: str, expected: bool | None) -> None:
    assert evaluate(parse(text), known(nonfinite=True, loss=2.0)) is expected


@pytest.mark.parametrize(
    ("text", "loss", "expected"),
    [
        ("loss > 10", NAN, False),
        ("loss <= 10", NAN, False),
        ("not (loss <= 10)", NAN, True),
        ("loss != loss", NAN, True),
        ("loss > 1e308", INF, True),
        ("loss - loss != 0", INF, True),
        ("loss * 0 != 0", INF, True),
        ("loss * 1e308 * 10 == 1e999", 5.0, True),
        ("1 / loss > 0", 0.0, None),
        ("1 / loss > 0 or True", 0.0, True),
        ("1 / loss == 0", INF, True),
        ("-loss - 1 == -3", 2.0, True),
        ("2 + 3 * loss == 8", 2.0, True),
        ("8 / 2 / loss == 2", 2.0, True),
        ("1 < loss <= 2 < 3", 2.0, True),
        ("1 < loss < 2 < 3", 2.0, False),
        ("loss > 1", 10**400, True),
        ("loss < 1", -(10**400), True),
    ],
)
def test_numbers_follow_ieee_and_precedence_is_pythons(
    text: str, loss: float, expected: bool | None
) -> None:
    assert evaluate(parse(text), known(loss=loss)) is expected


def test_count_of_elements_may_stand_for_true() -> None:
    assert evaluate(parse("nonfinite()"), known(nonfinite=12)) is True
    assert evaluate(parse("nonfinite()"), known(nonfinite=0)) is False


def test_values_of_different_steps_are_not_combined() -> None:
    older = known(nonfinite=Sample(True, 5), grad_norm=Sample(100.0, 4), step=Sample(5, 5))
    assert evaluate(parse("nonfinite() and grad_norm() > 10"), older) is None
    assert evaluate(parse("nonfinite() or grad_norm() > 10"), older) is True
    assert evaluate(parse("grad_norm() > 10 and step > 1"), older) is None
    assert evaluate(parse("grad_norm() > 10"), older) is True
    assert evaluate(parse("nonfinite() and step > 1"), older) is True


def test_last_combines_with_an_older_value() -> None:
    condition = parse("nonfinite() and last(grad_norm()) > 10")
    older = known(nonfinite=Sample(True, 5), last_grad_norm=Sample(100.0, 4))
    assert evaluate(condition, older) is True
    newer = known(nonfinite=Sample(True, 5), last_grad_norm=Sample(100.0, 6))
    assert evaluate(condition, newer) is True


def test_value_of_no_particular_step_is_never_too_old() -> None:
    condition = parse("nonfinite() and optimizer_step == 0")
    values = known(nonfinite=Sample(True, 3), optimizer_step=Sample(0, None))
    assert evaluate(condition, values) is True


def test_lookup_is_asked_for_what_the_condition_uses() -> None:
    asked: list[Input] = []

    def lookup(source: Input) -> Sample | None:
        asked.append(source)
        return None

    evaluate(parse('nonfinite("h.*", phase="input") and step > last(loss)'), lookup)
    use = MetricUse("nonfinite", "h.*", (("phase", "input"),))
    assert asked == [use, "step", MetricUse("loss", last=True)]


def test_explanation_gives_each_value_with_its_step() -> None:
    condition = parse('nonfinite("h.*") and grad_norm() > 1 and last(loss) > 1 and step > 2')
    lookup = known(
        nonfinite=True, grad_norm=Sample(12.3456789, 6), step=Sample(7, 7), last_loss=Sample(3, 2)
    )
    assert explain(condition, lookup) == (
        'nonfinite("h.*") = true (step 7), grad_norm() = 12.3457 (step 6, too old to count), '
        "last(loss) = 3 (step 2), step = 7"
    )
    assert explain(parse("loss > 1"), known()) == "loss is not known yet"
    assert explain(parse("loss > 1"), known(loss=Sample(NAN, None))) == "loss = nan"


@given(texts(), st.data())
def test_value_is_what_python_says(text: str, data: st.DataObject) -> None:
    condition = parse(text, need_metric=False)
    values: dict[Input, float | None] = {s: data.draw(numbers()) for s in condition.inputs}
    python, names = condition.text, dict[str, float | bool]()
    by_length = sorted(values, key=lambda source: -len(text_of(Read(source))))
    for place, source in enumerate(by_length):  # the longer first: last(loss) before loss
        python = python.replace(text_of(Read(source)), f"v{place}")
        names[f"v{place}"] = within_range(source, values[source] or 0.0)
    try:
        expected = eval(python, {}, names)
    except ZeroDivisionError:
        assume(False)
    else:
        assert evaluate(condition, lookup_of(values)) is expected


@given(texts(), st.data())
def test_what_is_decided_stays_so_when_more_becomes_known(text: str, data: st.DataObject) -> None:
    condition = parse(text, need_metric=False)
    full: dict[Input, float | None] = {s: data.draw(numbers()) for s in condition.inputs}
    partial = {s: data.draw(st.sampled_from([None, value])) for s, value in full.items()}
    before, after = evaluate(condition, lookup_of(partial)), evaluate(condition, lookup_of(full))
    assert before is None or before is after


@given(texts().map('nonfinite("*") and {}'.format) | texts(2), st.data())
def test_condition_that_needs_no_false_never_holds_while_nonfinite_is_false(
    text: str, data: st.DataObject
) -> None:
    condition = parse(text, need_metric=False)
    assume(not condition.needs_false)
    values: dict[Input, float | None] = {
        source: 0.0
        if isinstance(source, MetricUse) and source.metric == "nonfinite" and not source.last
        else data.draw(numbers())
        for source in condition.inputs
    }
    assert evaluate(condition, lookup_of(values)) is not True
