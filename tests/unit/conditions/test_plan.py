"""What the front ends ask: may this text be set as a tensorpoint?"""

from __future__ import annotations

import pytest

from tensorpoint.conditions import ConditionError
from tensorpoint.conditions.plan import check


@pytest.mark.parametrize(
    "text",
    [
        "nonfinite()",
        'nonfinite("h.*", phase="input") and step > 100',
        'nonfinite("h.*", phase="forward") or optimizer_step > 3 and not nonfinite("h.*")',
        "nonfinite() and not last(nonfinite())",
        "step > 1 and grad_norm() > 10",
        'nonfinite(phase="backward")',
        "loss > 3",
        'score("m:f") > 0.5',
    ],
)
def test_what_can_hold_is_accepted(text: str) -> None:
    assert check(check(text).text) == check(text)


def test_condition_that_can_never_hold_is_refused_with_the_reason() -> None:
    with pytest.raises(ConditionError) as caught:
        check("  nonfinite() and step < 0")
    assert caught.value.message == (
        "step is a whole number of at least 0, so step < 0 can never hold"
    )
    assert caught.value.offset == 2


def test_layer_condition_needs_no_metric_and_may_be_blank() -> None:
    assert check("step > 100", kind="layer").text == "step > 100"
    assert check(" ", kind="layer").text == "True"
    with pytest.raises(ConditionError, match="measures nothing"):
        check("step > 100")
    with pytest.raises(ConditionError, match="can never hold"):
        check("step < 0", kind="layer")


def test_filter_box_takes_a_bare_module_glob() -> None:
    assert check("model.layers.*", shorthand="nonfinite").text == 'nonfinite("model.layers.*")'
    with pytest.raises(ConditionError, match="goes into quotes"):
        check("model.layers.*")
