"""Data breakpoints that wait for a model which has their path, and plans that come meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from torch import nn

from tensorpoint.agent.data import lookup, watch
from tensorpoint.agent.data.targets import Targets
from tensorpoint.agent.data.watch import DataWatch
from tensorpoint.agent.modules import Call, Names
from tensorpoint.agent.rules import Rule
from tensorpoint.wire import Tensorpoint


def test_a_plan_that_comes_while_a_model_is_looked_through_is_the_one_in_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*given: Any) -> bool:
        return True

    watching = DataWatch(Names(), stop, Targets(), lambda text: None)
    watching.arm([Rule(Tensorpoint(1, "data", "changed", "weight"))])
    replacing = threading.Thread(target=lambda: watching.arm([]))

    def interrupted(*given: Any) -> Any:
        replacing.start()
        replacing.join(0.5)  # it waits for us, or takes no time
        return lookup.of_expression(*given)

    monkeypatch.setattr(watch, "of_expression", interrupted)
    watching.on_root(Call(nn.Linear(2, 2), ()))
    replacing.join()
    assert watching._watched == () and watching._waiting == []
