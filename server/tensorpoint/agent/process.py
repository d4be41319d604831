"""This process, as its machine knows it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress


def age() -> float | None:
    """For how many seconds this process has run, by a clock that nobody sets (Linux)."""
    try:
        with open("/proc/self/stat", "rb") as stream:
            ticks = int(stream.read().rpartition(b")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return None


def before_hanging_up(act: Callable[[], None]) -> None:
    """Call `act` when the main thread has ended, before pydevd hears of it and hangs up.

    Nothing public is called in between. Without it `act` is not called.
    """
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with suppress(RuntimeError):  # it is ending now
            register(act)
