"""Steps of which it is known that they write nothing non-finite: never one that does."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

from tensorpoint.agent.bounded import Bounded
from tensorpoint.agent.tensors import norm_of

OPTIMIZERS = ["Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD"]


def known(parameters: Iterable[Any]) -> list[float | None]:
    return [norm_of(parameter.grad) for parameter in parameters]


def unknown(parameters: Iterable[Any]) -> list[float | None]:
    return [None for _ in parameters]


def step(bounded: Bounded, optimizer: Any, gradient: torch.Tensor) -> bool:
    """Whether a step with this gradient is covered; the parameters are read where not."""
    stepped = [(p, group) for group in optimizer.param_groups for p in group["params"]]
    for parameter, _ in stepped:
        parameter.grad = gradient.to(parameter.dtype).expand_as(parameter).clone()
    optimizer.step()
    covered = bounded.covers(optimizer, stepped)
    if not covered:
        bounded.was_read(optimizer, [norm_of(parameter) for parameter, _ in stepped])
    return covered


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_covered_step_leaves_parameters_and_state_finite(name: str) -> None:
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(8))
    optimizer = getattr(torch.optim, name)([parameter], lr=1e6 if name == "SGD" else 50.0)
    bounded, covered = Bounded(known), 0
    for number in range(120):
        size = 10.0 ** (number % 33 - 18)
        covered += step(bounded, optimizer, torch.tensor(size if number % 3 else -size))
        tensors = [parameter, *optimizer.state[parameter].values()]
        finite = all(bool(torch.isfinite(t).all()) for t in tensors if isinstance(t, torch.Tensor))
        assert finite or not covered
        if not finite:
            break
    assert covered or name == "SGD"


def test_parameters_are_read_at_every_sixteenth_step() -> None:
    optimizer, bounded = torch.optim.AdamW([nn.Parameter(torch.ones(3))]), Bounded(known)
    read = [n for n in range(40) if not step(bounded, optimizer, torch.ones(()))]
    assert read == [0, 17, 34]


class Own(torch.optim.SGD):
    pass


@pytest.mark.parametrize(
    ("make", "gradient"),
    [
        (lambda p: torch.optim.Adam(p, eps=0.0), 0.0),
        (lambda p: torch.optim.SGD(p, lr=math.inf), 1.0),
        (lambda p: torch.optim.SGD(p, lr=1e9), 1.0),
        (lambda p: torch.optim.SGD(p, lr=1e3, weight_decay=10.0), 1.0),
        (lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-3)), 1.0),
        (torch.optim.SGD, 1e16),
        (torch.optim.SGD, math.nan),
        (torch.optim.Rprop, 1.0),
        (Own, 1.0),
    ],
)
def test_what_could_write_one_is_not_covered(make: Any, gradient: float) -> None:
    optimizer, bounded = make([nn.Parameter(torch.ones(3))]), Bounded(known)
    assert not any(step(bounded, optimizer, torch.tensor(gradient)) for _ in range(4))


def test_halves_large_parameters_and_unknown_gradients_are_not_covered() -> None:
    half = torch.optim.Adam([nn.Parameter(torch.ones(3, dtype=torch.float16))])
    large = torch.optim.SGD([nn.Parameter(torch.full((3,), 1e20))])
    for optimizer in (half, large):
        bounded = Bounded(known)
        assert not any(step(bounded, optimizer, torch.ones(())) for _ in range(4))
    ignorant = Bounded(unknown)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))])
    assert not any(step(ignorant, optimizer, torch.ones(())) for _ in range(4))


def test_clipping_bounds_a_gradient_until_somebody_writes_to_it() -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer, bounded = torch.optim.SGD([parameter]), Bounded(unknown)
    bounded.was_read(optimizer, [1.0])
    stepped = [(parameter, optimizer.param_groups[0])]
    for write, covered in ((False, True), (True, False)):
        parameter.grad = torch.full((3,), 0.5)
        bounded.clipped([parameter], 7.0)
        if write:
            parameter.grad.mul_(math.inf)
        assert bounded.covers(optimizer, stepped) is covered
