"""Modules and functions whose forward is finite and whose backward isn't."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.unit.agent.armed import Armed, armed

NAN, INF = float("nan"), float("inf")


class _Spoil(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, value: float) -> torch.Tensor:  # type: ignore[override]
        ctx.value = value
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gradient * 1 + torch.zeros_like(gradient).index_fill_(
            0, torch.tensor([0]), ctx.value
        ), None


def spoil(x: torch.Tensor, value: float = NAN) -> torch.Tensor:
    """`x` itself, but the first row of its gradient has `value`."""
    return _Spoil.apply(x, value)


class Spoils(nn.Module):
    """Passes on its input; makes a bad gradient of it in the calls in `at` (all if None)."""

    def __init__(self, value: float = NAN, at: set[int] | None = None) -> None:
        super().__init__()
        self.value, self.at, self.calls = value, at, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.at is not None and self.calls - 1 not in self.at:
            return x * 1
        return spoil(x, self.value)


class Does(nn.Module):
    """Runs a function as its forward, around children."""

    def __init__(self, act: Callable[..., Any], **children: nn.Module) -> None:
        super().__init__()
        self.act = act
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.act(self, *args, **kwargs)


def lin() -> nn.Linear:
    """A layer that returns positive values for positive ones."""
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.abs_()
        layer.bias.fill_(0.1)
    return layer


def batch() -> torch.Tensor:
    return torch.ones(3, 2)


def trained(
    model: nn.Module,
    *rules: Any,
    steps: int = 1,
    loss: Callable[[Any], torch.Tensor] = lambda output: output.sum(),
    lr: float | None = None,
) -> Armed:
    """The stops of a few backward passes, with optimizer steps between if there is a rate."""
    optimizer = None if lr is None else torch.optim.SGD(model.parameters(), lr=lr)
    with armed(*rules) as agent:
        for _ in range(steps):
            model.zero_grad()
            loss(model(batch())).backward()
            if optimizer is not None:
                optimizer.step()
    return agent


def blamed(model: nn.Module, *rules: Any, **options: Any) -> list[str]:
    """The modules that `trained` has blamed, of a model with no other fault."""
    agent = trained(model, *rules, **options)
    assert all(event == "nonfinite.backward" for event, _, _ in agent.stops), agent.stops
    return agent.places
