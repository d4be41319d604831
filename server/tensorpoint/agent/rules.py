"""The armed tensorpoints: which modules each looks at, and where each is true at the moment."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
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
        #: The places (per module and kind of event) where the condition is true now.
        self.true_at: set[Hashable] = set()

    def uses(self, metric: str) -> bool:
        """Whether the condition looks at `metric`."""
        return self.condition is not None and any(
            use.metric == metric for use in self.condition.uses
        )

    @property
    def every_observation(self) -> bool:
        """Whether it can be true where its metric is false, so that it must always be looked at."""
        return self.condition is not None and self.condition.needs_false

    def looks_at(self, path: str) -> bool:
        """Whether the rule is about the module at `path`."""
        if self.is_layer or self.condition is None:
            return fnmatchcase(path, self.tensorpoint.module)
        return self.condition.matches(path)

    def observe(self, place: Hashable, values: Mapping[str, Sample], phase: str) -> bool:
        """Look at the condition for one module; True if it turned true there just now.

        `values` maps names (`step`) and metrics (`nonfinite`) to what was seen in `phase`.
        """
        holds = self.holds(values, phase)
        if holds is False:
            self.true_at.discard(place)
        if not holds:  # None: not known yet, which neither fires nor re-arms
            return False
        if place in self.true_at:
            return False
        self.true_at.add(place)
        return True

    def holds(self, values: Mapping[str, Sample], phase: str | None = None) -> bool | None:
        """Whether the condition is true, None if something it needs is not known.

        A metric that asks for another phase than `phase` is false.
        """
        if self.condition is None:
            return True

        def lookup(wanted: MetricUse | str) -> Sample | None:
            if isinstance(wanted, str):
                return values.get(wanted)
            sample = values.get(wanted.metric)
            elsewhere = any(name == "phase" and value != phase for name, value in wanted.options)
            return Sample(False, sample.step) if sample is not None and elsewhere else sample

        return evaluate(self.condition, lookup)
