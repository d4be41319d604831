"""The agent's hooks and its nonfinite watch in this process, with a list in place of a debugger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from tensorpoint.agent.hooks import Hooks
from tensorpoint.agent.layers import LayerBreakpoints
from tensorpoint.agent.modules import Names
from tensorpoint.agent.rules import Rule
from tensorpoint.agent.watches.base import Event
from tensorpoint.agent.watches.nonfinite import Nonfinite
from tensorpoint.wire import Tensorpoint


def rule(condition: str, number: int = 0) -> Rule:
    return Rule(Tensorpoint(number, "condition", condition))


def layer(glob: str, condition: str = "", number: int = 0) -> Rule:
    return Rule(Tensorpoint(number, "layer", condition, glob))


class Armed:
    """Records what would have stopped the program, and faults of ours."""

    def __init__(self) -> None:
        self.names = Names()
        #: Whether somebody sees the stops.
        self.attached = True
        self.faults: list[tuple[Any, Exception]] = []
        self.calls: list[tuple[list[int], Event]] = []
        #: (event, path of the module, step) of each stop.
        self.stops: list[tuple[str, str, int | None]] = []
        self.nonfinite = Nonfinite(self.names, self.stop)
        self.layers = LayerBreakpoints(self.names, self.stop)
        self.hooks = Hooks(self.names, self.fault)

    def stop(self, rules: Sequence[Rule], event: Event) -> bool:
        self.calls.append(([rule.id for rule in rules], event))
        path = self.names.path(event.module, event.entered)
        self.stops.append((event.name, path, self.names.step(event.module)))
        return self.attached

    def fault(self, culprit: Any, error: Exception) -> None:
        self.faults.append((culprit, error))

    @property
    def event(self) -> Event:
        """The one event so far."""
        assert len(self.calls) == 1, self.stops
        return self.calls[0][1]

    @property
    def places(self) -> list[str]:
        """The paths of the stops."""
        return [path for _, path, _ in self.stops]

    def arm(self, *rules: Rule) -> None:
        conditions = [rule for rule in rules if not rule.is_layer]
        layers = [rule for rule in rules if rule.is_layer]
        self.nonfinite.arm(conditions)
        self.layers.arm(layers)
        self.hooks.listeners = (self.nonfinite,) if conditions else ()
        self.hooks.on_enter = (self.layers.on_enter,) if layers else ()
        self.hooks.install()


@contextmanager
def armed(*rules: Rule | str, faults: Literal["none", "some"] = "none") -> Iterator[Armed]:
    """Hooks installed for these rules (by default NaN/Inf everywhere), and out again."""
    agent = Armed()
    given = [
        rule(item, number) if isinstance(item, str) else item for number, item in enumerate(rules)
    ]
    agent.arm(*(given or [rule("nonfinite()")]))
    try:
        yield agent
    finally:
        agent.hooks.remove()
    if faults == "none":
        assert not agent.faults, agent.faults
