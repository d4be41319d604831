"""Values whose class answers for every attribute by code of its own, which may never return.

pydevd asks each value that it shows for its `__class__`, as `isinstance` does where a value isn't
plainly of a class. A proxy that waits there, for a lock or another machine, would hang the view,
and with it every request after that. So pydevd's part for such values runs on a thread that is
waited for only so long; what a class did not answer once in a stop isn't asked for again.

Told by the type alone. It isn't done for all values: another thread has other thread locals.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, Generic, TypeVar

#: How long an answer is waited for.
_SECONDS = 2.0

T = TypeVar("T")


class Guarded:
    """Such a value on its way through code of pydevd's that would ask it for its class."""

    def __init__(self, value: Any) -> None:
        self.value = value


class NoAnswer(Exception):
    """The text is what to show in place of the value."""


#: The classes that did not answer in this stop, by id.
_silent: dict[int, type] = {}


def is_guarded(value: object) -> bool:
    """Whether to ask for its `__class__` may run code of the program's."""
    for kind in type.__getattribute__(type(value), "__mro__"):
        if kind is object or kind is type:
            continue
        own = type.__getattribute__(kind, "__dict__")
        if "__class__" in own or isinstance(own.get("__getattribute__"), FunctionType):
            return True
    return False


def kind_of(value: object) -> str:
    """The name of its class."""
    return type.__getattribute__(type(value), "__name__")


def forget() -> None:
    """The program goes on: ask again at the next stop."""
    _silent.clear()


def asked(value: object, act: Callable[[], T]) -> T:
    """What `act` returns, on another thread if it may hang. Raises NoAnswer."""
    if not is_guarded(value):
        return act()
    kind = type(value)
    if id(kind) not in _silent:
        asking = _Asking(act)
        asking.start()
        asking.join(_SECONDS)
        if not asking.is_alive():
            return asking.answer()
        _silent[id(kind)] = kind
    text = f"{kind_of(value)} (code of its class has not answered in {_SECONDS:g} s)"
    raise NoAnswer(text)


class _Asking(threading.Thread, Generic[T]):
    """A thread that the debugger neither traces nor waits for.

    What does not answer is left alone. An exception from outside (`PyThreadState_SetAsyncExc`)
    would end a loop of Python's, but pydevd catches it and asks again; and on Python 3.11 that
    second loop was seen to let no other thread run any more.
    """

    def __init__(self, act: Callable[[], T]) -> None:
        super().__init__(name="tensorpoint.asking", daemon=True)
        self.pydev_do_not_trace = self.is_pydev_daemon_thread = True
        self._act, self._context = act, contextvars.copy_context()
        self._result: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._context.run(self._act)
        except BaseException as error:
            self._error = error

    def answer(self) -> T:
        """What came of it."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]
