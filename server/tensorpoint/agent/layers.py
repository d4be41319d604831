"""Layer breakpoints: stop where a module is entered, by its path."""

from __future__ import annotations

from collections.abc import Sequence

from ..conditions import Input, Sample
from . import explain
from .modules import Call, Names, keywords_of
from .rules import Rule
from .watches.base import Event, Stop


class LayerBreakpoints:
    """The armed `layer:` tensorpoints."""

    def __init__(self, names: Names, stop: Stop) -> None:
        self._names = names
        self._stop = stop
        self._rules: tuple[Rule, ...] = ()

    @property
    def is_armed(self) -> bool:
        """Whether there are any."""
        return bool(self._rules)

    def arm(self, rules: Sequence[Rule]) -> None:
        """Stop for exactly these from now on."""
        self._rules = tuple(rules)

    def on_enter(self, call: Call, outer: list[Call]) -> None:
        """A module is about to run its forward."""
        path = self._names.path(call.module, outer[0].module if outer else call.module)
        matching = [rule for rule in self._rules if rule.looks_at(path)]
        if not matching:
            return

        def lookup(wanted: Input) -> Sample | None:
            return self._names.counter(str(wanted), call.module)

        fired = [rule for rule in matching if rule.holds(lookup) is True]
        if fired:
            event = Event(
                name="layer.entry",
                module=call.module,
                entered=call.module,
                headline="layer",
                sentences=(f"{explain.place(call.module, path)} is about to run its forward.",),
                values={"inputs": call.args, "keyword_inputs": keywords_of(call)},
            )
            self._stop(fired, event)
