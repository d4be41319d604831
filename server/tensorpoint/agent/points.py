"""A tapped function: what it is replaced by, and where."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


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
            self._names.clear()
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


def replace_names(points: Iterable[Point]) -> None:
    """Replace each function wherever else a module has it, under whatever name.

    Not in torch's C modules: nobody imports from them, and compilers look operators up there.
    """
    wanted = {id(point.original): point for point in points if point.is_function}
    if not wanted:
        return
    for name, module in list(sys.modules.items()):
        if name.startswith("torch._C"):
            continue
        try:
            items = list(vars(module).items())
        except TypeError:  # something else that a program has put there
            continue
        for own, value in items:
            point = wanted.get(id(value))
            if point is not None and value is point.original:
                point.add_name(vars(module), own)
