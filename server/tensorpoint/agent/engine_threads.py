"""Autograd's own threads: on CUDA each backward pass goes on one, on the CPU nested checkpoints do.

C++ starts them, so that they have no frame of the program, no trace function before Python 3.12,
and a name like Dummy-6. What of a program runs on them is the `backward` of its autograd functions,
and hooks. There line breakpoints hit and steps go as anywhere: the thread is traced from its first
such function on, its stack is continued by that of the thread that waits in `backward()`, and a
step that leaves it ends on that thread.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

from . import debugger
from .frames import is_internal, outwards
from .hooks import Replaced
from .tracebacks import leave_out_ours

_ENGINE = "_engine_run_backward"
_NAME = "autograd "
_DEVICE_THREAD = "pt_autograd_"


class EngineThreads:
    """What is put around the backward of autograd functions while a debugger is attached."""

    def __init__(self) -> None:
        self._replaced: list[Replaced] = []

    def install(self) -> None:
        """Trace autograd's threads from now on. Does nothing if that is so already."""
        function = sys.modules.get("torch.autograd.function")
        kind: Any = getattr(function, "BackwardCFunction", None)
        if self._replaced or kind is None:
            return
        self._replaced = [
            Replaced(kind, name, _traced(getattr(kind, name)))
            for name in ("apply", "apply_boxed")
            if hasattr(kind, name)
        ]

    def remove(self) -> None:
        """Leave them alone."""
        for item in self._replaced:
            item.remove()
        self._replaced = []


def _traced(original: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[int, threading.Thread] = vars(threading)["_active"]
    dummy, ident = threading._DummyThread, threading.get_ident

    @wraps(original)
    def apply(self: Any, *args: Any) -> Any:
        thread = known.get(ident())
        if thread is None or (isinstance(thread, dummy) and not thread.name.startswith(_NAME)):
            greet()
        try:
            return original(self, *args)
        except BaseException as error:
            leave_out_ours(error)
            raise

    return apply


def greet() -> None:
    """Name this thread of autograd's and trace it."""
    thread = _current()
    if isinstance(thread, threading._DummyThread):
        thread.name = f"{_NAME}{_device()}"
        debugger.enable_tracing()


def _current() -> threading.Thread:
    """This thread, also where nobody has asked for it yet: then Python makes what stands for it.

    The debugger has to be the first, as within `untraced`. By `sys.monitoring` it sees the lines
    that make it, would make another meanwhile, and answer for a thread that nobody knows.
    """
    with debugger.untraced():
        return threading.current_thread()


def _device() -> str:
    """By the name that torch gives the threads of other devices, where the system tells it."""
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/comm") as file:
            name = file.read().strip()
    except OSError:
        return "device" if sys.modules["torch"].cuda.is_available() else "cpu"
    if name.startswith(_DEVICE_THREAD):
        return f"cuda:{name.removeprefix(_DEVICE_THREAD)}"
    return "cpu"


def waiting_frame() -> FrameType | None:
    """On a thread of autograd's the program's frame that waits for it; else None."""
    if not isinstance(_current(), threading._DummyThread):
        return None
    for ident, top in sys._current_frames().items():
        if ident == threading.get_ident():
            continue
        frames = list(outwards(top))
        if any(frame.f_code.co_name == _ENGINE for frame in frames):
            greet()
            return next((frame for frame in frames if not is_internal(frame)), None)
    return None
