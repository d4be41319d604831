"""The armed tensorpoints: which modules each looks at, what it knows, and where it is true now."""

from __future__ import annotations

from collections.abc import Hashable
from fnmatch import fnmatchcase
from types import CodeType

from ..conditions import (
    Condition,
    Lookup,
    MetricUse,
    Sample,
    evaluate,
    explain,
    false_up_to,
    parse,
)
from ..conditions.layer import bind, is_expression
from ..conditions.metrics import METRICS
from ..wire import Tensorpoint

#: What a value belongs to: a module by id, and a part of it (a phase, an attention head, the name
#: of a parameter). WHOLE is the whole model.
Place = tuple[int, Hashable]
WHOLE: Place = (0, None)


class Rule:
    """One tensorpoint as the watches see it.

    A rule is looked at once per matching module. It fires when its condition turns true there
    and re-arms when it is false again.
    """

    #: Whether the debugger suspends the thread where it fires; else `local` says what happens.
    suspends = True

    def __init__(self, tensorpoint: Tensorpoint) -> None:
        self.tensorpoint = tensorpoint
        self.id = tensorpoint.id
        self.is_layer = tensorpoint.kind == "layer"
        text = tensorpoint.condition
        #: A condition on the call of a layer, which is Python's.
        self.expression: CodeType | None = (
            bind(text, tensorpoint.phase) if self.is_layer and is_expression(text) else None
        )
        self.condition: Condition | None = (
            parse(text, need_metric=not self.is_layer)
            if text and self.expression is None and tensorpoint.kind != "data"
            else None
        )
        #: The places where the condition is true now.
        self.true_at: set[Place] = set()
        uses = self.condition.uses if self.condition is not None else ()
        self._uses = uses
        self._names = self.condition.names if self.condition is not None else frozenset[str]()
        #: Whether one measurement decides: nothing else has to be remembered.
        self.single = len(uses) + ("loss" in self._names) == 1
        #: The newest value of each metric, by metric, option and place.
        self._newest: dict[tuple[str, str | None], dict[Place, Sample]] = {}

    def uses(self, metric: str) -> bool:
        """Whether the condition looks at `metric`."""
        return metric in self._names or any(use.metric == metric for use in self._uses)

    def reads_whole(self, metric: str) -> bool:
        """Whether it reads `metric` of the whole model."""
        return metric in self._names or any(
            use.metric == metric and use.glob is None for use in self._uses
        )

    def reads_bound(self, metric: str) -> bool:
        """Whether it reads `metric` per module."""
        return any(use.metric == metric and use.glob is not None for use in self._uses)

    @property
    def may_name_parameters(self) -> bool:
        """Whether its glob is about parameters where it matches no module."""
        return any(METRICS[use.metric].form == "global" for use in self._uses)

    def options(self, metric: str) -> tuple[str, ...]:
        """What it asks `metric` about: phases of `nonfinite`, the function of `score`."""
        return tuple(
            value for use in self._uses if use.metric == metric for _, value in use.options
        )

    def asks_without_option(self, metric: str) -> bool:
        """Whether it asks `metric` about all options at once, somewhere in its condition."""
        return any(use.metric == metric and not use.options for use in self._uses)

    @property
    def every_observation(self) -> bool:
        """Whether it can be true where its metric is false, so that it must always be looked at."""
        return self.condition is not None and self.condition.needs_false

    def looks_at(self, path: str) -> bool:
        """Whether the rule is about the module at `path`."""
        if self.is_layer or self.condition is None:
            return fnmatchcase(path, self.tensorpoint.module)
        return self.condition.matches(path)

    def is_about(self, path: str, kind: str) -> bool:
        """The same of a module of the class `kind`, by which layer breakpoints may go."""
        if self.looks_at(path) or not self.is_layer:
            return self.looks_at(path)
        pattern = self.tensorpoint.module
        return kind == pattern or (
            "." not in pattern and pattern != "*" and fnmatchcase(kind, pattern)
        )

    def remember(self, metric: str, option: str | None, place: Place, sample: Sample) -> None:
        """Keep `sample` for the conditions that combine it with other values."""
        self._newest.setdefault((metric, option), {})[place] = sample

    def remembered(self, metric: str, option: str | None, place: Place) -> Sample | None:
        """The newest value of `metric` at `place`, or of the module as a whole."""
        values = self._newest.get((metric, option))
        if values is None:
            return None
        sample = values.get(place)
        return values.get((place[0], None)) if sample is None else sample

    def forget(self, modules: frozenset[int]) -> None:
        """Modules with these ids are new: what is known by them is of others that are gone."""
        self.true_at -= {place for place in self.true_at if place[0] in modules}
        for values in self._newest.values():
            for place in [place for place in values if place[0] in modules]:
                del values[place]

    def known_places(self) -> list[Place]:
        """The modules and parts that something was measured at."""
        return list({place: None for values in self._newest.values() for place in values})

    def false_up_to(self, metric: str) -> float | None:
        """A value of `metric` up to which the condition is certainly not true, if there is one."""
        return None if self.condition is None else false_up_to(self.condition, metric)

    def observe(self, place: Place, lookup: Lookup) -> bool:
        """Look at the condition for one place; True if it turned true there just now."""
        holds = self.holds(lookup)
        if holds is False:
            self.true_at.discard(place)
        if not holds:  # None: not known yet, which neither fires nor re-arms
            return False
        if place in self.true_at:
            return False
        self.true_at.add(place)
        return True

    def holds(self, lookup: Lookup) -> bool | None:
        """Whether the condition is true, None if something it needs is not known."""
        return True if self.condition is None else evaluate(self.condition, lookup)

    def in_words(self, lookup: Lookup) -> str:
        """Each value that the condition reads, with its step."""
        return "" if self.condition is None else explain(self.condition, lookup)


def option_of(use: MetricUse) -> str | None:
    """What `use` asks its metric about, beside the module."""
    return use.options[0][1] if use.options else None
