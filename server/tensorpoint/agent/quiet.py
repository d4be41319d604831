"""While we run the program's code ourselves: nothing of ours looks on, what it does is noted."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ClassVar

from . import debugger, writes


class _State(threading.local):
    depth = 0


#: `depth` is above 0 where `is_quiet`: for code that runs often, without a call.
state = _State()


def is_quiet() -> bool:
    """Whether this thread runs something of the program again, which is no news."""
    return state.depth > 0


@contextmanager
def on_this_thread() -> Generator[None]:
    """What this thread does is not the program's doing."""
    state.depth += 1
    try:
        yield
    finally:
        state.depth -= 1


@contextmanager
def side_effects() -> Generator[list[str]]:
    """Hold back what this thread prints, and list what it does besides computing.

    The list is complete at the end: "print", "writing log.txt". See `writes` for what is in it.
    """
    found: list[str] = []

    def note(effect: str) -> None:
        if effect not in found:
            found.append(effect)

    with held_back(note), writes.noted(note):
        yield found


@contextmanager
def held_back(note: Callable[[str], object] = str) -> Generator[None]:
    """Hold back what this thread prints, and tell `note` of it."""
    ident, out, err = threading.get_ident(), sys.stdout, sys.stderr
    held = [_Held.over(stream, ident, note) for stream in (out, err)]
    sys.stdout, sys.stderr = held
    try:
        yield
    finally:
        for name, stream in (("stdout", out), ("stderr", err)):
            if isinstance(getattr(sys, name), _Held):
                setattr(sys, name, stream)
        for stand_in in held:
            stand_in.let_go()


@contextmanager
def not_waiting(refuse: Callable[[], BaseException]) -> Generator[None]:
    """What would wait for another thread on this one raises instead what `refuse` makes.

    The other thread doesn't take part: at a barrier this one would wait for good, or let the other
    one go that waits for the program's own.
    """
    ident = threading.get_ident()
    waits: tuple[Any, ...] = (threading.Barrier, threading.Condition)
    originals = [(kind, kind.wait) for kind in waits]

    def refusing(original: Any) -> Any:
        @wraps(original)
        def wait(*args: Any, **kwargs: Any) -> Any:
            # The debugger waits in the same way while the thread is suspended.
            if threading.get_ident() == ident and not debugger.evaluating():
                raise refuse()
            return original(*args, **kwargs)

        return wait

    for kind, original in originals:
        kind.wait = refusing(original)
    try:
        yield
    finally:
        for kind, original in originals:
            kind.wait = original


class _Held:
    """A stream that keeps what one thread writes to itself.

    Used again and never freed: `print` uses `sys.stdout` without a reference of its own
    (python/cpython#130163, until 3.12.10 and 3.13.3), and another thread may be in one.
    """

    _unused: ClassVar[list[_Held]] = []

    def __init__(self) -> None:
        self._stream: Any = None
        self._ident: int | None = None
        self._note: Callable[[str], object] = str

    @classmethod
    def over(cls, stream: Any, ident: int, note: Callable[[str], object]) -> _Held:
        try:
            held = cls._unused.pop()
        except IndexError:
            held = cls()
        held._stream, held._note, held._ident = stream, note, ident
        return held

    def let_go(self) -> None:
        """What a thread is still about to write goes to the stream."""
        self._ident = None
        self._unused.append(self)

    def write(self, text: str) -> int:
        if threading.get_ident() != self._ident or debugger.evaluating():
            return self._stream.write(text)
        self._note("print")
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
