"""Modules that make a NaN or an infinity of finite values."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.unit.agent.armed import Armed, armed

NAN, INF = float("nan"), float("inf")


class Makes(nn.Module):
    """Returns its input with the first element replaced, at the steps in `at` (all if None)."""

    def __init__(self, value: float = NAN, at: set[int] | None = None) -> None:
        super().__init__()
        self.value, self.at, self.calls = value, at, 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        if self.at is not None and self.calls - 1 not in self.at:
            return x * 1
        return torch.cat([torch.full_like(x[:1], self.value), x[1:]])


X = torch.ones(4, 2)


def ran(model: nn.Module, *rules: Any, steps: int = 1, x: Any = X) -> Armed:
    with armed(*rules) as agent:
        for _ in range(steps):
            model(x)
    return agent


def chain(**at: Any) -> Any:
    return nn.Sequential(
        nn.Linear(2, 2), nn.Sequential(nn.ReLU6(), Makes(**at), nn.Linear(2, 2)), nn.Linear(2, 2)
    )
