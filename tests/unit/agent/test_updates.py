"""The hooks around optimizer steps."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import pytest
import torch
from torch import nn

from tensorpoint.agent import debugger
from tensorpoint.agent.watches.base import Watch
from tests.unit.agent.armed import Armed
from tests.unit.agent.spoiling import batch, lin


class Listens(Watch):
    metric = "listens"

    def __init__(self, fails: bool = False) -> None:
        self.told: list[tuple[str, Any]] = []
        self.fails = fails

    def on_before_update(self, optimizer: Any) -> None:
        self.told.append(("before", optimizer))
        if self.fails:
            raise ValueError("of ours")

    def on_after_update(self, optimizer: Any) -> None:
        self.told.append(("after", optimizer))


def stepping(model: nn.Module, *optimizers: Any, steps: int = 1) -> None:
    for _ in range(steps):
        model.zero_grad()
        model(batch()).sum().backward()
        for optimizer in optimizers:
            optimizer.step()


@pytest.fixture
def agent() -> Any:
    agent = Armed()
    agent.updates.install()
    yield agent
    agent.updates.remove()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.SGD, {"fused": True}),
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.Adafactor, {}),
        (torch.optim.RMSprop, {}),
        (torch.optim.LBFGS, {}),
    ],
)
def test_any_optimizer_is_told_of(agent: Armed, kind: Any, options: Any) -> None:
    listener = Listens()
    agent.updates.listen([listener])
    model = lin()
    optimizer = kind(model.parameters(), lr=0.01, **options)
    if kind is torch.optim.LBFGS:
        optimizer.step(lambda: model(batch()).sum())
    else:
        stepping(model, optimizer)
    assert listener.told == [("before", optimizer), ("after", optimizer)]
    assert agent.names.optimizer_step() == 1


def test_steps_are_counted_with_nobody_listening(agent: Armed) -> None:
    model = lin()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stepping(model, optimizer, steps=3)
    assert agent.names.optimizer_step() == 3


def test_a_step_that_the_gradient_scaler_skips_is_none(agent: Armed) -> None:
    listener = Listens()
    agent.updates.listen([listener])
    model = lin()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1e38)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(model(batch()).sum() * 1e5).backward()
        scaler.step(optimizer)
        scaler.update()
    assert listener.told == [] and agent.names.optimizer_step() == 0


def test_a_step_that_raises_is_not_counted(agent: Armed) -> None:
    listener = Listens()
    agent.updates.listen([listener])
    model = lin()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> float:
        raise ValueError("of the program's")

    with pytest.raises(ValueError, match="of the program's"):
        optimizer.step(closure)
    assert [what for what, _ in listener.told] == ["before"]
    assert agent.names.optimizer_step() == 0


def test_a_fault_of_ours_does_not_reach_the_program(agent: Armed) -> None:
    listener, other = Listens(fails=True), Listens()
    agent.updates.listen([listener, other])
    model = lin()
    stepping(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert [culprit for culprit, _ in agent.faults] == [listener]
    assert [what for what, _ in other.told] == ["before", "after"]


def test_what_the_user_evaluates_is_not_told(agent: Armed, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listens()
    agent.updates.listen([listener])
    monkeypatch.setattr(debugger, "evaluating", lambda: True)
    model = lin()
    stepping(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert listener.told == []


def test_nothing_is_left_after_removal(agent: Armed) -> None:
    module: Any = sys.modules["torch.optim.optimizer"]
    assert len(module._global_optimizer_pre_hooks) == len(module._global_optimizer_post_hooks) == 1
    agent.updates.install()  # again: nothing more
    assert len(module._global_optimizer_pre_hooks) == 1
    agent.updates.remove()
    assert not module._global_optimizer_pre_hooks and not module._global_optimizer_post_hooks


def test_an_optimizer_can_be_copied_pickled_and_saved(agent: Armed) -> None:
    model = lin()
    optimizer = torch.optim.AdamW(model.parameters())
    stepping(model, optimizer)
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert not other._optimizer_step_pre_hooks and not other._optimizer_step_post_hooks
