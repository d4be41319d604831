"""Clipping by norm, called alone: of gradients that no backward of ours has brought."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tensorpoint

INF, NAN = float("inf"), float("nan")


def clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def clip_one_by_one(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_([*model.parameters()], 1.0, foreach=False)


def clip_with_norm(model: nn.Module) -> None:
    norm = nn.utils.get_total_norm([one.grad for one in model.parameters() if one.grad is not None])
    nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)


def clip_value(model: nn.Module) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 1.0)


def with_gradients(bad: float) -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    model[1].weight.grad[1, 2] = bad  # type: ignore[index]
    return model


def stops_at(act: Callable[[nn.Module], None], model: nn.Module) -> list[Any]:
    stops: list[Any] = []
    with tensorpoint.watch("nonfinite()", on=stops.append):
        act(model)
    assert torch._C._len_torch_dispatch_stack() == 0
    return stops


@pytest.mark.parametrize(
    ("act", "op", "operand"),
    [
        (clip, "aten._foreach_mul_.Tensor", "self[2]"),
        (clip_one_by_one, "aten.mul_.Tensor", "self"),
        (clip_with_norm, "aten._foreach_mul_.Tensor", "self[2]"),
    ],
)
def test_the_operation_its_operands_and_the_parameter_are_named(
    act: Callable[[nn.Module], None], op: str, operand: str
) -> None:
    (stop,) = stops_at(act, with_gradients(INF))
    assert stop.event == "nonfinite.update"
    assert stop.tensor.name == "1.weight.grad"
    assert stop.operation.name == op
    assert stop.operation.function == act.__name__
    assert "the gradient at [1, 2] is inf" in stop.operation.cause
    assert [one.nonfinite for one in stop.operation.operands if one.name == operand] == [1]


@pytest.mark.parametrize("act", [clip, clip_one_by_one, clip_with_norm])
def test_of_a_nan_that_was_there_before_the_parameter_is_named(
    act: Callable[[nn.Module], None],
) -> None:
    (stop,) = stops_at(act, with_gradients(NAN))
    assert (stop.tensor.name, stop.operation) == ("1.weight.grad", None)
    assert "because of the gradient of 1.weight" in stop.text
    assert "the gradient was NaN before it was clipped" in stop.text


@pytest.mark.parametrize("act", [clip, clip_one_by_one, clip_with_norm])
def test_finite_gradients_are_no_news(act: Callable[[nn.Module], None]) -> None:
    assert not stops_at(act, with_gradients(3.0))


def test_clipping_by_value_makes_nothing_bad() -> None:
    model = with_gradients(INF)
    assert not stops_at(clip_value, model)
    assert all(
        bool(one.grad.isfinite().all()) for one in model.parameters() if one.grad is not None
    )
