"""Checks that are not waited for: on CUDA, and here on the CPU by pretending that it is remote."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from tensorpoint.agent.slots import Slots
from tests.unit.agent.armed import Armed, armed


class Scales(nn.Module):
    factor = 1.0

    def forward(self, x: Any) -> Any:
        return x * self.factor


@contextmanager
def deferred(*conditions: str) -> Iterator[Armed]:
    with armed(*(conditions or ("nonfinite()",))) as agent:
        agent.nonfinite._look = lambda *_: None  # as it does for what isn't on the CPU
        agent.nonfinite._is_remote = lambda tensor: True
        yield agent


def step(model: nn.Module, x: torch.Tensor) -> None:
    parameters = [*model.parameters()] or [nn.Parameter(torch.ones(1))]
    model(x)
    torch.optim.SGD(parameters, lr=0.0).step()


def test_the_first_bad_output_of_a_step_is_named_before_the_parameters_change() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), Scales(), nn.Linear(2, 2))
    with deferred() as agent:
        step(model, torch.ones(1, 2))
        model[1].factor = math.nan
        model(torch.ones(1, 2))
        assert not agent.stops
        torch.optim.SGD(model.parameters(), lr=0.0).step()
    assert agent.stops == [("nonfinite.forward", "1", 1)]
    assert agent.event.headline == "NaN in the output of"


def test_without_an_optimizer_it_is_found_at_the_next_call() -> None:
    model: Any = nn.Sequential(Scales())
    with deferred() as agent:
        model[0].factor = math.inf
        model(torch.ones(3))
        model(torch.ones(3))
    assert agent.places[0] == "0" and "Inf" in agent.calls[0][1].headline


def test_after_a_find_each_layer_is_looked_at_as_it_returns() -> None:
    model: Any = nn.Sequential(Scales(), nn.Identity())
    with deferred() as agent:
        model[0].factor = math.nan
        step(model, torch.ones(3))
        model[0].factor = 1.0
        step(model, torch.ones(3))
        model[0].factor = math.nan
        model(torch.ones(3))
        assert [event.entered for _, event in agent.calls] == [None, model[0]]


def test_minus_infinity_alone_stops_nothing_and_makes_the_checks_exact() -> None:
    model: Any = nn.Sequential(Scales())
    with deferred() as agent:
        step(model, torch.tensor([1.0, -math.inf, 2.0, 3.0]))
        assert agent.nonfinite._is_precise
        assert not [event for event, _, _ in agent.stops if event == "nonfinite.forward"]


def test_a_step_of_more_outputs_than_slots_loses_none() -> None:
    slots, module = Slots(), nn.Identity()
    taken = sum(slots.add(module, 0, torch.ones(2)) for _ in range(5000))
    assert taken == 4096
    assert slots.read() == (None, False)
    assert slots.add(module, 1, torch.tensor(math.nan)) and slots.read()[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_sum_that_overflows_its_type_is_no_find(dtype: torch.dtype) -> None:
    slots = Slots()
    assert slots.add(nn.Identity(), 0, torch.full((1000,), 6e4, dtype=dtype))
    assert slots.read() == (None, False)


class Roots(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.sqrt()


def test_gradients_are_read_at_the_end_of_the_pass_until_one_was_bad() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), Roots(), nn.Linear(2, 1))
    told: list[int] = []
    with armed("nonfinite()", "grad_norm() > 1e9", 'grad_norm("2") > 0') as agent:
        agent.gradients._is_remote = lambda tensor: True
        read = agent.gradients._read_late
        agent.gradients._read_late = lambda: (told.append(len(agent.gradients._late)), read())[1]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        with torch.no_grad():
            model[0].weight.fill_(1.0)
            model[0].bias.zero_()
            model[2].weight.fill_(1.0)
        for x in (torch.ones(1, 2), torch.zeros(1, 2), torch.ones(1, 2), torch.zeros(1, 2)):
            optimizer.zero_grad()
            model(x).sum().backward()
            if x.any():
                optimizer.step()
    assert told == [4, 4, 0, 0]
    backward = [event for _, event in agent.calls if event.name == "nonfinite.backward"]
    assert [event.headline.split(" of")[0] for event in backward] == [
        "Inf in the gradient",
        "Inf in a gradient, made in the backward",
    ]
    assert [type(event.module).__name__ for event in backward] == ["Linear", "Roots"]
    assert "grad_norm" in {event.name for _, event in agent.calls}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_a_forward_waits_for_nothing() -> None:
    model: Any = nn.Sequential(nn.Linear(64, 64), Scales(), nn.Linear(64, 1)).cuda()
    x = torch.ones(8, 64, device="cuda")
    with armed() as agent:
        step(model, x)
        torch.cuda.set_sync_debug_mode("error")
        try:
            model[0](x)
            model[1].factor = math.nan
            agent.nonfinite._slots.send()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        step(model, x)
    assert agent.stops[0][:2] == ("nonfinite.forward", "1")
