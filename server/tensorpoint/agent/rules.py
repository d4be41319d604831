"""The armed tensorpoints: which modules each looks at, and where each is true at the moment."""

from __future__ import annotations

from collections.abc import Hashable
from fnmatch import fnmatchcase

from ..conditions import Condition, MetricUse, Sample, evaluate, parse
from ..wire import Tensorpoint


class Rule:
    """One tensorpoint as the watches see it.

    A rule is looked at once per matching module. It fires when its condition turns true there
    and re-arms when it is false again.
    """

    def __init__(self, tensorpoint: Tensorpoint) -> None:
        self.tensorpoint = tensorpoint
        self.id = tensorpoint.id
        self.is_layer = tensorpoint.kind == "layer"
        self.condition: Condition | None = (
            parse(tensorpoint.condition, need_metric=not self.is_layer)
            if tensorpoint.condition
            else None
        )
        uses = self.condition.uses if self.condition else ()
        globs = [use.glob for use in uses if use.glob is not None]
        self._glob = tensorpoint.module if self.is_layer else (globs[0] if globs else "*")
        self._phases = {str(value) for use in uses for key, value in use.options if key == "phase"}
        self._true_at: set[Hashable] = set()

    def uses(self, metric: str) -> bool:
        """Whether the condition looks at `metric`."""
        return self.condition is not None and any(
            use.metric == metric for use in self.condition.uses
        )

    @property
    def every_observation(self) -> bool:
        """Whether it can be true where its metric is false, so that it must always be looked at."""
        return self.condition is not None and self.condition.needs_false

    def looks_at(self, path: str, phase: str | None = None) -> bool:
        """Whether the rule is about the module at `path` (in `phase`, if it names any)."""
        if phase is not None and self._phases and phase not in self._phases:
            return False
        return fnmatchcase(path, self._glob)

    def observe(self, place: Hashable, values: dict[str, Sample]) -> bool:
        """Look at the condition for one module; True if it turned true there just now.

        `values` maps names (`step`) and metrics (`nonfinite`) to what was seen.
        """
        holds = self.holds(values)
        if holds is False:
            self._true_at.discard(place)
        if not holds:  # None: not known yet, which neither fires nor re-arms
            return False
        if place in self._true_at:
            return False
        self._true_at.add(place)
        return True

    def holds(self, values: dict[str, Sample]) -> bool | None:
        """Whether the condition is true, None if something it needs is not known."""
        if self.condition is None:
            return True

        def lookup(wanted: MetricUse | str) -> Sample | None:
            return values.get(wanted if isinstance(wanted, str) else wanted.metric)

        return evaluate(self.condition, lookup)

    def rearm(self, place: Hashable) -> None:
        """The condition is false at `place` now: let it fire there again."""
        self._true_at.discard(place)

    @property
    def is_true_somewhere(self) -> bool:
        return bool(self._true_at)

    def is_true_at(self, place: Hashable) -> bool:
        return place in self._true_at
