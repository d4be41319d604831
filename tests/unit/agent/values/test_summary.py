"""What a hover says of a parameter's gradient: as it is now, or as it was recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from tensorpoint.agent.values import summary
from tensorpoint.agent.values.cache import Cache
from tensorpoint.agent.values.known import Known
from tensorpoint.agent.values.nodes import ALL, Node
from tensorpoint.agent.values.summary import Summaries
from tensorpoint.agent.values.view import View
from tensorpoint.wire.facts import Parameter

RECORDED = Parameter(
    *("weight", None, "float32", (2,), "cpu", True),
    *(5.0, True, 7, 7, 2, None, None, 0.25, None),
)


def hover(parameter: nn.Parameter, recorded: Parameter | None = None) -> list[str]:
    """The parts that are about its gradient."""
    text = Summaries(Known(parameter=lambda _: recorded), Cache()).full(parameter)
    assert text is not None
    return [part for part in text.split(" | ")[1:] if "grad" in part or "update" in part]


def test_the_gradient_that_is_there_is_shown_not_the_one_that_was_recorded() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([3.0, 4.0])
    assert hover(weight, RECORDED)[0] == "‖grad‖ 5"
    weight.grad /= 5  # clipped
    assert hover(weight, RECORDED) == ["‖grad‖ 1", "update ratio 0.25", "gradient 2 steps old"]
    assert hover(weight) == ["‖grad‖ 1"]


def test_a_gradient_that_is_gone_is_the_recorded_one_and_said_to_be() -> None:
    weight = nn.Parameter(torch.ones(2))
    assert hover(weight, RECORDED)[:2] == ["‖grad‖ 5 in step 7", "no gradient now"]
    assert hover(weight) == ["no gradient"]
    assert hover(nn.Parameter(torch.ones(2), requires_grad=False)) == []


@pytest.mark.parametrize(("norm", "text"), [(0.0, "0"), (0.25, "0.25"), (None, "not finite")])
def test_the_recorded_gradient_has_a_row(norm: float | None, text: str) -> None:
    recorded = replace(RECORDED, gradient_norm=norm, gradient_finite=norm is not None)
    shown = View(Known(parameter=lambda _: recorded))
    rows = shown.children(nn.Parameter(torch.ones(2)), ALL, None) or ()
    (row,) = (row.value for row in rows if row.name == "recorded gradient")
    assert isinstance(row, Node) and row.text == f"‖grad‖ {text} in step 7"


def test_a_gradient_on_a_device_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    monkeypatch.setattr(summary, "is_on_cpu", lambda tensor: False)
    monkeypatch.setattr(summary, "norm_of", lambda tensor: pytest.fail("it would wait"))
    assert hover(weight) == ["gradient not recorded"]
    assert hover(weight, RECORDED)[0] == "‖grad‖ 5 in step 7"
