"""Exceptions that an operation of torch's raises, in the program's words.

torch says "mat1 and mat2 shapes cannot be multiplied (3x8 and 16x2)". What is missing, and what the
traceback still has, is the module (the frames of `_call_impl` hold it), the line that called (the
innermost one outside of torch), and which expressions of that line the operands are.

All of it is read from the traceback when a program is about to stop at the exception; before that
nothing is noted and nothing costs anything. Nothing of the program runs.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import FrameType, TracebackType
from typing import Any

from ..wire.torch_error import TorchError
from . import debugger, debugger_files
from .modules import Names
from .ops.recorder import Failed
from .torch_error_text import Description
from .torch_places import calling, is_call, is_library, is_of_torch, is_torchs, places_of
from .tracebacks import without_ours

#: What torch's operations raise; its other exceptions (AttributeError, ...) speak for themselves.
_TYPES = (RuntimeError, IndexError, TypeError, ValueError, AssertionError)


#: Finds what a recorder has noted of the operation that raised.
FindFailed = Callable[[BaseException], "Failed | None"]


@dataclass(frozen=True)
class Located:
    """A description, and the frame with the line that called torch."""

    error: TorchError
    frame: FrameType

    @property
    def body(self) -> dict[str, Any]:
        """What the `stopped` event says of it."""
        error = self.error
        description = f"Paused on {error.description}"
        return {"description": description, "text": error.text, "torchError": asdict(error)}


class TorchErrors:
    """Describes exceptions with the names that the agent knows."""

    def __init__(self, names: Names, failed: FindFailed = lambda error: None) -> None:
        self._names = names
        self._failed = failed

    def describe(
        self, error_type: type[BaseException], value: Any, trace: TracebackType | None
    ) -> Located | None:
        """The description, or None for what no operation of torch's has raised."""
        return describe(error_type, value, trace, self._names, self._failed)


def describe(
    error_type: type[BaseException],
    value: Any,
    trace: TracebackType | None,
    names: Names | None = None,
    failed: FindFailed = lambda error: None,
) -> Located | None:
    """The description of an exception, or None for what no operation of torch's has raised."""
    torch = sys.modules.get("torch")
    if not issubclass(error_type, _TYPES) or issubclass(error_type, RecursionError):
        return None
    if trace is None or not hasattr(torch, "Tensor"):
        return None
    places = places_of(trace)
    position = calling(places)
    if position is None or not is_of_torch(error_type, places, position):
        return None
    call, inside = places[position], places[position + 1 :]
    called = call.site()
    modules = [place.frame.f_locals["self"] for place in places if is_call(place)]
    outer = places[:position]
    known = failed(value) if isinstance(value, BaseException) else None
    description = Description(error_type, value, outer, call, inside, called, modules, names, known)
    error = description.error()
    return Located(error, call.frame)


def print_uncaught() -> None:
    """Print the description of an exception that ends the program (a thread) after its traceback.

    For `tensorpoint run`, where nobody would see a stop.
    """
    before, before_in_threads = sys.excepthook, threading.excepthook

    def excepthook(
        error_type: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        value.__traceback__ = shown = _of_the_program(value, trace)
        before(error_type, value, shown)
        _print(error_type, value, trace)

    def in_threads(arguments: threading.ExceptHookArgs) -> None:
        before_in_threads(arguments)
        _print(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)

    sys.excepthook, threading.excepthook = excepthook, in_threads


def _print(error_type: type[BaseException], value: Any, trace: TracebackType | None) -> None:
    found: Any = debugger.described((error_type, value, trace))
    if isinstance(found, Located) and sys.stderr is not None:
        error = found.error
        text = error.text.removeprefix(f"{error.message}\n")
        print(f"\ntensorpoint: {text}", file=sys.stderr, flush=True)


def _of_the_program(value: BaseException, trace: TracebackType | None) -> TracebackType | None:
    """The traceback as `python` would show it, without the debugger's frames and ours."""
    first = without_ours(trace)
    while first is not None and _starts_the_program(first.tb_frame):
        first = first.tb_next
    # Of an error of syntax nothing is left, as it is with `python`; else it is the debugger's own.
    return trace if first is None and not isinstance(value, SyntaxError) else first


def _starts_the_program(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if file == "pydevd.py":  # of a fork, see `resident.forking.debugger`
        return True
    inside = os.path.abspath(file).startswith(debugger_files.folder())
    return inside or frame.f_globals.get("__name__") == "runpy"


def calls_torch(frame: FrameType) -> bool:
    """Whether it runs torch's own code, and code that is not torch's has called it."""
    if not is_torchs(frame.f_code.co_filename):
        return False
    outer = frame.f_back
    while outer is not None:
        if not is_library(outer):
            return True
        outer = outer.f_back
    return False
