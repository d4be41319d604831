"""The agent's hooks and its nonfinite watch in this process, with a list in place of a debugger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from tensorpoint.agent.gradients import Gradients
from tensorpoint.agent.hooks import Hooks
from tensorpoint.agent.judge import Judge
from tensorpoint.agent.layers import LayerBreakpoints
from tensorpoint.agent.modules import Names
from tensorpoint.agent.rules import Rule
from tensorpoint.agent.updates import Updates
from tensorpoint.agent.watches import all_watches
from tensorpoint.agent.watches.base import Event, Watch
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
        self.judge = Judge(self.names, self.stop)
        self.gradients = Gradients(self.names, self.fault)
        self.watches = all_watches(
            self.names, self.judge, self.scale_of, self.gradients.known_norms
        )
        self.layers = LayerBreakpoints(
            self.names,
            self.stop,
            lambda found: None,
            lambda activity, error: self.fault(None, error),
        )
        self.hooks = Hooks(self.names, self.fault)
        self.updates = Updates(self.names, self.fault)
        #: What a gradient scaler would say.
        self.scale: float | None = None

    @property
    def nonfinite(self) -> Nonfinite:
        """The watch of the forward pass."""
        return next(watch for watch in self.watches if isinstance(watch, Nonfinite))

    def scale_of(self, tensor: Any) -> float | None:
        return self.scale

    def stop(self, rules: Sequence[Rule], event: Event) -> bool:
        self.calls.append(([rule.id for rule in rules], event))
        path, step = "", self.names.newest_step()
        if event.module is not None:
            path = self.names.path(event.module, event.entered or event.module)
            step = self.names.step(event.module)
        self.stops.append((event.name, path, step))
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
        self.judge.arm(conditions, [watch.metric for watch in self.watches])
        listeners: list[Watch] = []
        for watch in self.watches:
            wanted = [rule for rule in conditions if watch.is_meant_by(rule)]
            watch.arm(wanted)
            if wanted:
                listeners.append(watch)
        self.layers.arm(layers)
        self.hooks.on_enter = (self.layers.on_enter,) if layers else ()
        self.gradients.listen(listeners)
        self.hooks.listen([self.gradients, *listeners])
        self.updates.listen([self.gradients, *listeners])
        self.hooks.install()
        self.updates.install()

    def remove(self) -> None:
        self.gradients.listen(())
        self.hooks.remove()
        self.updates.remove()


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
        agent.remove()
    if faults == "none":
        assert not agent.faults, agent.faults
