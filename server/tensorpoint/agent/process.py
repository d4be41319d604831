"""This process, as its machine knows it."""

from __future__ import annotations

import os
import time


def age() -> float | None:
    """For how many seconds this process has run, by a clock that nobody sets (Linux)."""
    try:
        with open("/proc/self/stat", "rb") as stream:
            ticks = int(stream.read().rpartition(b")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return None
