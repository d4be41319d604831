"""Conditions whose glob names nothing: a typo would else look like a model without a fault.

What a glob names may be made late, by a second model or by the model itself. So there is nothing to
say until the models of a program are likely known: a training has called all of them by the time
its optimizer has stepped, what never trains by a hundred calls, and whatever ends before that has
shown what there is. It is said once. Until then each call of a root looks at what has become known
since, which costs nothing where all globs have matched, as they do at the first call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from .layers import why_no_layer
from .modules import Names
from .near import below_the_root, near, without_numbers
from .rules import Rule

_CALLS = 100
_MOST = 5


class Globs:
    """The armed rules with a glob that has matched nothing so far."""

    def __init__(self, names: Names, tell: Callable[[Rule, str], bool]) -> None:
        self._names = names
        #: Says why a rule has matched nothing; False if it is to be said later.
        self._tell = tell
        self._lock = threading.RLock()
        #: Rules by the calls of roots that they have seen.
        self._open: dict[Rule, int] = {}
        #: Those that are done with, as long as they are armed, and why they matched nothing or "".
        self._closed: dict[Rule, str] = {}
        #: Why they have matched nothing, by rule, as of the modules known at `_seen`.
        self._reasons: dict[Rule, str] = {}
        self._seen = -1
        self._optimizer_steps = 0

    def arm(self, rules: Iterable[Rule]) -> None:
        """Look for exactly these from now on; those that stay keep what is known of them."""
        with self._lock:
            wanted = {rule for rule in rules if _glob(rule) not in (None, "*")}
            self._closed = {rule: why for rule, why in self._closed.items() if rule in wanted}
            new = wanted - self._closed.keys() - self._open.keys()
            self._open = {
                **{rule: calls for rule, calls in self._open.items() if rule in wanted},
                **dict.fromkeys(sorted(new, key=lambda rule: rule.id), 0),
            }
            if new:
                self._seen = -1
                self._optimizer_steps = self._names.optimizer_step()

    def on_call(self) -> None:
        """A root is called, on any thread of the program's."""
        if not self._open:
            return
        with self._lock:
            self._look()
            trained = self._names.optimizer_step() > self._optimizer_steps
            for rule in self._open:
                self._open[rule] += 1
            late = [rule for rule, calls in self._open.items() if trained or calls >= _CALLS]
            reasons = [(rule, self._reasons[rule]) for rule in late]
        for rule, why in reasons:
            if self._tell(rule, why):
                self._open.pop(rule, None)
                self._closed[rule] = why

    def untold(self) -> list[tuple[Rule, str]]:
        """Which have matched nothing of what was called, and why, if that is yet to be said."""
        with self._lock:
            return [(rule, self._reasons[rule]) for rule, calls in self._open.items() if calls]

    def outcome(self, rule: Rule) -> str | None:
        """Why it has matched nothing; "" if it has, None if nothing was called or it names none."""
        with self._lock:
            if self._open.get(rule):
                return self._reasons[rule]
            return self._closed.get(rule)

    def after_fork(self) -> None:
        """What a forked child calls is another matter."""
        self._lock = threading.RLock()
        self._open = dict.fromkeys(self._open, 0)

    def _look(self) -> None:
        """Close those that match something of what is known by now."""
        if self._names.version == self._seen:
            return
        self._seen = self._names.version
        known, called = self._names.all(), self._names.called()
        for rule in list(self._open):
            if rule.is_layer:
                why = why_no_layer(rule, known, called)
            else:
                why = _why_no_module(rule, known, self._names.parameters())
            if why:
                self._reasons[rule] = why
            else:
                del self._open[rule]
                self._closed[rule] = ""


def _glob(rule: Rule) -> str | None:
    if rule.is_layer:
        return rule.tensorpoint.module
    return None if rule.condition is None else rule.condition.glob


def _why_no_module(rule: Rule, known: Sequence[tuple[str, str]], parameters: Sequence[str]) -> str:
    """Why a condition matches nothing, in words; "" if it does."""
    if any(rule.is_about(*item) for item in known) or (
        rule.may_name_parameters and any(map(rule.looks_at, parameters))
    ):
        return ""
    glob = _glob(rule) or ""
    paths = [path for path, _ in known if path]
    text = f"{rule.tensorpoint.text}: no module so far has a path that matches {glob!r}"
    if rest := below_the_root(glob, paths):
        return f'{text}; paths begin below the model: "{rest}"'
    of_class = [path for path, kind in known if fnmatchcase(kind, glob) and path]
    if of_class:
        examples = ", ".join(without_numbers(of_class)[:_MOST])
        return f"{text}, which is a class; the paths of its modules: {examples}"
    if any(fnmatchcase(path, glob) for path in parameters):
        return f'{text}, which is a parameter; name its module: "{glob.rpartition(".")[0]}"'
    if found := near(glob, without_numbers(paths)):
        return f"{text}; near to it: {', '.join(found)}"
    first = list(dict.fromkeys(path.partition(".")[0] for path in paths))
    if not first:
        return f"{text}; there are only models without modules in them"
    more = ", ..." if len(first) > _MOST else ""
    return f"{text}; below the model there are: {', '.join(first[:_MOST])}{more}"
