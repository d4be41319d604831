"""Parameters that a glob names: one that matches no module of their model is about their paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from .modules import Names
from .rules import Rule

if TYPE_CHECKING:
    from torch.nn import Module


class NamedParameters:
    """Which of the armed rules of a metric name a parameter."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._rules: tuple[Rule, ...] = ()
        #: The rules whose glob matches no module of a root, by the version of the names.
        self._open: WeakKeyDictionary[Module, tuple[int, tuple[Rule, ...]]] = WeakKeyDictionary()

    def arm(self, rules: Sequence[Rule]) -> None:
        """Look at exactly these, which have a glob each."""
        self._rules = tuple(rules)
        self._open = WeakKeyDictionary()

    def rules(self, owner: Module, name: str) -> tuple[Rule, ...]:
        """The rules whose glob names this parameter of `owner`'s, by any path that it has."""
        rules = self._naming_no_module(owner)
        if not rules:
            return ()
        root = self._names.root_and_path(owner)[0]
        holders = dict.fromkeys([(owner, name), *self._names.names_below(root, owner, name)])
        paths = [
            f"{path}.{own}" if (path := self._names.path(module, root)) else own
            for module, own in holders
        ]
        return tuple(rule for rule in rules if any(map(rule.looks_at, paths)))

    def _naming_no_module(self, owner: Module) -> tuple[Rule, ...]:
        root, version = self._names.root_and_path(owner)[0], self._names.version
        known = self._open.get(root)
        if known is None or known[0] != version:
            paths = [self._names.path(module, root) for module in root.modules()]
            rules = tuple(rule for rule in self._rules if not any(map(rule.looks_at, paths)))
            known = self._open[root] = version, rules
        return known[1]
