"""A recorder of facts with the sources that it hears of, and a model to record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tensorpoint.agent.facts import Recorder
from tensorpoint.agent.gradients import Gradients
from tensorpoint.agent.hooks import Hooks
from tensorpoint.agent.modules import Names
from tensorpoint.agent.updates import Updates
from tensorpoint.wire import Facts
from tensorpoint.wire.facts import Layer, Parameter


class Recording:
    """A recorder behind installed hooks; every fault fails the test."""

    def __init__(self) -> None:
        self.names = Names()
        self.faults: list[tuple[Any, Exception]] = []
        self.scale: float | None = None
        #: A module that returns its argument.
        self.says = Says()
        self.hooks = Hooks(self.names, self._fault)
        self.gradients = Gradients(self.names, self._fault)
        self.updates = Updates(self.names, self._fault)
        self.recorder = Recorder(self.names, lambda _: self.scale)
        self.recorder.record(True)
        self.gradients.listen([self.recorder])
        self.hooks.listen([self.gradients, self.recorder])
        self.updates.listen([self.gradients, self.recorder])
        self.hooks.install()
        self.updates.install()

    def _fault(self, culprit: Any, error: Exception) -> None:
        self.faults.append((culprit, error))

    def remove(self) -> None:
        self.gradients.listen(())
        self.hooks.remove()
        self.updates.remove()

    def read(self, glob: str | None = None, history: bool = False) -> Facts:
        return self.recorder.read(glob, history)

    def layer(self, path: str) -> Layer:
        found = [item for item in self.read(history=True).layers if item.module == path]
        assert len(found) == 1, [item.module for item in self.read().layers]
        return found[0]

    def parameter(self, path: str) -> Parameter:
        return next(p for p in self.read(history=True).parameters if p.parameter == path)


@pytest.fixture
def recording() -> Iterator[Recording]:
    made = Recording()
    yield made
    made.remove()
    assert not made.faults, made.faults


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.act = nn.ReLU()
        self.last = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x)))  # calls its layers


class Says(nn.Module):
    """Returns what it is told to."""

    def forward(self, value: Any) -> Any:
        return value


def train(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


# -- layers
