"""Decides which tensorpoints fire when something was measured, and stops for those.

A watch measures; whether that makes a condition true depends on what else the condition reads.
Conditions with a single metric are decided by the measurement alone. For the others the newest
value of each metric is remembered, per module where the metric is bound to one, and a measurement
is looked at together with those.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ..conditions import Input, Lookup, Sample
from .modules import Names
from .rules import WHOLE, Place, Rule, option_of

if TYPE_CHECKING:
    from torch.nn import Module

    from .watches.base import Event, Stop


class Judge:
    """The armed rules by metric. A stop that nobody sees leaves its rule as it was."""

    def __init__(self, names: Names, stop: Stop) -> None:
        self._names = names
        self._stop = stop
        self._rules: dict[str, tuple[Rule, ...]] = {}
        #: Which rules of a metric look at a module: globs are matched once.
        self._bound: dict[str, WeakKeyDictionary[Module, tuple[Rule, ...]]] = {}

    def arm(self, rules: Sequence[Rule], metrics: Sequence[str]) -> None:
        """Decide for exactly these rules from now on; `metrics` are those that are watched."""
        self._rules = {
            metric: tuple(rule for rule in rules if rule.uses(metric)) for metric in metrics
        }
        self._bound = {metric: WeakKeyDictionary() for metric in metrics}

    def bound(self, metric: str, module: Module, within: Module | None = None) -> tuple[Rule, ...]:
        """The rules on `metric` of modules that look at `module` (which is below `within`)."""
        known = self._bound.get(metric)
        if known is None:
            return ()
        rules = known.get(module)
        if rules is None:
            path = self._names.path(module, module if within is None else within)
            rules = tuple(
                rule
                for rule in self._rules[metric]
                if rule.reads_bound(metric) and rule.looks_at(path)
            )
            known[module] = rules
        return rules

    def whole(self, metric: str) -> tuple[Rule, ...]:
        """The rules that read `metric` of the whole model."""
        return tuple(rule for rule in self._rules.get(metric, ()) if rule.reads_whole(metric))

    def limit(self, metric: str, rules: Sequence[Rule]) -> float:
        """The value up to which none of `rules` is interested: nothing has to be looked at.

        But for rules that are true at the moment, which a small value makes false again.
        """
        bounds = [rule.false_up_to(metric) if rule.single else None for rule in rules]
        return min((-inf if bound is None else bound for bound in bounds), default=inf)

    def would_hold(
        self,
        metric: str,
        value: float,
        rules: Sequence[Rule],
        *,
        module: Module | None = None,
        part: Hashable = None,
        option: str | None = None,
    ) -> bool:
        """Whether a condition would be true, or is waiting for other values, if that was measured.

        For estimates: only if so is the exact value worth its cost.
        """
        sample = Sample(value, self._step(module))
        place = _place(module, part)
        return any(
            rule.holds(self._lookup(rule, metric, option, sample, module, place)) is not False
            for rule in rules
        )

    def measured(
        self,
        metric: str,
        value: float,
        rules: Sequence[Rule],
        event: Callable[[], Event],
        *,
        module: Module | None = None,
        part: Hashable = None,
        option: str | None = None,
    ) -> bool:
        """Look at `rules` now that `metric` has `value`; stop if some turn true. True if stopped.

        `module` is None for a value of the whole model; `part` tells apart several values of one
        module (attention heads); `option` is what the metric was asked about (a phase, a function).
        """
        sample = Sample(value, self._step(module))
        place = _place(module, part)
        fired: list[tuple[Rule, Place, Lookup]] = []
        for rule in rules:
            for where, lookup in self._looks(rule, metric, option, sample, module, place):
                if rule.observe(where, lookup):
                    fired.append((rule, where, lookup))
        return bool(fired) and self._stop_for(fired, event())

    def _looks(
        self,
        rule: Rule,
        metric: str,
        option: str | None,
        sample: Sample,
        module: Module | None,
        place: Place,
    ) -> Sequence[tuple[Place, Lookup]]:
        """The places that the measurement is news to, and what is known there."""
        if not rule.single:
            for known_as in {option, None}:
                rule.remember(metric, known_as, place, sample)
            if place[1] is None:  # of the model, or of a module: news to each part of it
                parts = [
                    other
                    for other in rule.known_places()
                    if other != place and (place is WHOLE or other[0] == place[0])
                ]
                if parts:
                    return [
                        (other, self._lookup(rule, metric, option, sample, module, other))
                        for other in parts
                    ]
        return [(place, self._lookup(rule, metric, option, sample, module, place))]

    def _lookup(
        self,
        rule: Rule,
        metric: str,
        option: str | None,
        sample: Sample,
        module: Module | None,
        place: Place,
    ) -> Lookup:
        # What is non-finite outside of any module (a loss) counts for `nonfinite("*")` as well, and
        # a parameter of no module for `no_grad("*")`.
        whole = module is None and metric not in ("nonfinite", "no_grad")

        def lookup(wanted: Input) -> Sample | None:
            if isinstance(wanted, str):
                if wanted == metric:
                    return sample
                if wanted == "loss":
                    return rule.remembered("loss", None, WHOLE)
                return self._names.counter(wanted, module)
            asked = option_of(wanted)
            if wanted.metric == metric and (wanted.glob is None) == whole:
                if asked is None or asked == option:
                    return sample
                if option is not None and metric == "nonfinite":  # in another phase it isn't
                    return rule.remembered(metric, asked, place) or Sample(False, sample.step)
            return rule.remembered(wanted.metric, asked, WHOLE if wanted.glob is None else place)

        return lookup

    def _stop_for(self, fired: Sequence[tuple[Rule, Place, Lookup]], event: Event) -> bool:
        rule, _, lookup = fired[0]
        if not rule.single or not event.name.startswith("nonfinite"):
            event = replace(event, sentences=(*event.sentences, rule.in_words(lookup) + "."))
        rules = list(dict.fromkeys(rule for rule, _, _ in fired))
        if self._stop(rules, event):
            return True
        for rule, place, _ in fired:  # nobody is there (yet) to see it
            rule.true_at.discard(place)
        return False

    def _step(self, module: Module | None) -> int | None:
        return self._names.newest_step() if module is None else self._names.step(module)


def _place(module: Module | None, part: Hashable) -> Place:
    return WHOLE if module is None and part is None else (id(module), part)
