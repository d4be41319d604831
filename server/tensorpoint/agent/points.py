"""A tapped function: what it is replaced by, and where."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .suspension import is_library


@dataclass(frozen=True)
class Listening:
    """A tap that is listened to, of the adapter called so."""

    adapter: str
    topic: str
    before: Callable[..., Any] | None
    after: Callable[..., Any] | None
    #: Whether the function is left out where its module lacks it.
    may_be_missing: bool = False


class Point:
    """A tapped function: where it is, what it is replaced by, and its names in other modules."""

    def __init__(self, target: str, make: Callable[[Point, Callable[..., Any]], Any]) -> None:
        module, _, path = target.partition(":")
        *outer, self.name = path.split(".")
        owner: Any = sys.modules[module]
        for part in outer:
            owner = getattr(owner, part)
        self.owner = owner
        found = inspect.getattr_static(owner, self.name)
        kind = type(found) if isinstance(found, (staticmethod, classmethod)) else None
        self.original: Any = found.__func__ if kind else getattr(owner, self.name)
        replacement = make(self, self.original)
        if not outer:  # found again by what pickles a function
            replacement.__module__, replacement.__qualname__ = module, path
        replacement._torchdynamo_inline = self.original
        self.replacement: Any = kind(replacement) if kind else replacement
        #: Whether other modules may have it under a name of their own.
        self.is_function = not outer
        self.taps: tuple[Listening, ...] = ()
        self._installed = False
        #: What was in the owner's own namespace; None if it inherits.
        self._before: Any = None
        self._names: list[tuple[dict[str, Any], str]] = []
        self._scripted = False
        #: Calls that run with the original in place, see `aside`.
        self._aside = 0
        self._turn = threading.Lock()

    def after_fork(self) -> None:
        """In the child none of the other threads goes on."""
        self._turn = threading.Lock()
        self._aside = 0

    def install(self) -> None:
        if self._installed:
            return
        self._before = vars(self.owner).get(self.name)
        setattr(self.owner, self.name, self.replacement)
        for namespace, name in self._names:  # of the time before: modules aren't looked at twice
            if namespace.get(name) is self.original:
                namespace[name] = self.replacement
        self._installed = True
        self._tell_script()

    def add_name(self, namespace: dict[str, Any], name: str) -> None:
        namespace[name] = self.replacement
        self._names.append((namespace, name))

    def remove(self) -> None:
        """Put the original back wherever ours still is."""
        self.taps = ()
        if not self._installed:
            return
        with self._turn:
            self._swap(self.replacement, self.original)
            self._installed = False

    @contextmanager
    def aside(self) -> Generator[None]:
        """Have the original in place while a tensor of the program's overrides it.

        What overrides it is given the original, and may ask `if func is F.scaled_dot...`. Calls of
        other threads are not heard meanwhile.
        """
        with self._turn:
            self._aside += 1
            if self._aside == 1:
                self._swap(self.replacement, self.original)
        try:
            yield
        finally:
            with self._turn:
                self._aside -= 1
                if self._aside == 0 and self._installed:
                    self._swap(self.original, self.replacement)

    def _swap(self, one: Any, other: Any) -> None:
        """Put `other` in the place of `one`, wherever it still is."""
        if vars(self.owner).get(self.name, self._before) is (
            self._before if one is self.original else one
        ):
            if other is self.original and self._before is None:
                delattr(self.owner, self.name)
            else:
                setattr(self.owner, self.name, self._before if other is self.original else other)
        for namespace, name in self._names:
            if namespace.get(name) is one:
                namespace[name] = other

    def _tell_script(self) -> None:
        """Let TorchScript know the replacement as the operator that the original is.

        It stays known: code that holds it may be scripted later.
        """
        builtins = sys.modules.get("torch.jit._builtins")
        if builtins is None or self._scripted:
            return
        operator = builtins._find_builtin(self.original)
        if operator is not None:
            builtins._register_builtin(self.replacement, operator)
        self._scripted = True


class Namespaces:
    """Which modules have no name of a point, or none that the point doesn't know.

    A `with tensorpoint.watch(...)` around each step arms each time, and to look through the 90,000
    names of a program that has torch and its compiler takes 25 ms. So modules of libraries are
    looked through once, and again if they have more names or fewer.
    """

    def __init__(self) -> None:
        self._wanted: frozenset[int] = frozenset()
        #: By name of the module: what was looked through, and how many names it had.
        self._known: dict[str, tuple[dict[str, Any], int]] = {}

    def replace(self, points: Iterable[Point]) -> None:
        """Replace each function wherever else a module has it, under whatever name.

        Not in torch's C modules: nobody imports from them, and compilers look operators up there.
        """
        wanted = {id(point.original): point for point in points if point.is_function}
        if not wanted:
            return
        if _ahead is not None and wanted.keys() <= _ahead.names.keys():
            found = [name for key in wanted for name in _ahead.names[key]]
            modules = _imported_since(_ahead.newest)
        else:
            found, modules = [], self._not_known(wanted.keys())
        for namespace, own, value in (*found, *_names_of(wanted, modules)):
            if namespace.get(own) is value:
                wanted[id(value)].add_name(namespace, own)

    def _not_known(self, wanted: Set[int]) -> list[str]:
        """The modules to look through for these functions. They are known from then on."""
        if self._wanted != wanted:
            self._known.clear()
            self._wanted = frozenset(wanted)
        known, modules = self._known, list[str]()
        for name, module in list(sys.modules.items()):
            try:
                namespace = vars(module)
            except TypeError:  # something else that a program has put there
                continue
            before = known.get(name)
            if before is not None and before[0] is namespace and before[1] == len(namespace):
                continue
            modules.append(name)
            file = namespace.get("__file__")
            if isinstance(file, str) and is_library(file):
                known[name] = namespace, len(namespace)
        return modules


@dataclass(frozen=True)
class _Ahead:
    #: By the id of a function: the modules that have it, under which names.
    names: dict[int, list[_Name]]
    #: The module that was imported last.
    newest: str


_Name = tuple[dict[str, Any], str, Any]
_ahead: _Ahead | None = None


def look_ahead(targets: Iterable[str]) -> None:
    """Note who has the functions that taps will replace, in a process that programs fork from.

    A look at all that 2,600 modules hold takes such a program 0.1 s, since what it looks at is on
    pages that are copied then.
    """
    global _ahead  # noqa: PLW0603 - of one process, between its fork and its start
    found = [_function(target) for target in targets]
    names: dict[int, list[_Name]] = {id(function): [] for function in found if function is not None}
    for name in _names_of(names, list(sys.modules)):
        names[id(name[2])].append(name)
    _ahead = _Ahead(names, next(reversed(sys.modules)))


def forget_ahead() -> None:
    """From here on the program may have given such a function another name in any module."""
    global _ahead  # noqa: PLW0603
    _ahead = None


def _function(target: str) -> Any:
    module, _, name = target.partition(":")
    return vars(sys.modules[module]).get(name) if module in sys.modules else None


def _imported_since(newest: str) -> list[str]:
    names = list(sys.modules)
    return names[len(names) - names[::-1].index(newest) :] if newest in sys.modules else names


def _names_of(wanted: Container[int], modules: Iterable[str]) -> Iterator[_Name]:
    """Where modules have the objects with these ids."""
    for name in modules:
        if name.startswith("torch._C"):
            continue
        try:
            namespace = vars(sys.modules[name])
        except (KeyError, TypeError):  # gone, or something else that a program has put there
            continue
        for own, value in list(namespace.items()):
            if id(value) in wanted:
                yield namespace, own, value
