"""Signals between the terminal, us and the program."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable

#: Signals that end a program which does not handle them.
ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
#: Signals that somebody who has only our process id means for the program: batch systems announce
#: the end of a job with SIGUSR1 or SIGUSR2.
_PASSED_ON = (*ENDING, "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGTSTP")


class Signals:
    """Routes signals to a handler on the event loop, and puts things back."""

    def __init__(self, handler: Callable[[int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._routed: list[int] = []
        if sys.platform == "win32":
            # Ctrl-C reaches the program's console by itself.
            signal.signal(signal.SIGINT, lambda *_: None)
            return
        for name in _PASSED_ON:
            signum = getattr(signal, name) if isinstance(name, str) else name
            # Ignored signals stay ignored, as under nohup or in the background of a script.
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._loop.add_signal_handler(signum, handler, signum)
                self._routed.append(signum)

    def restore(self) -> None:
        for signum in self._routed:
            self._loop.remove_signal_handler(signum)


def signal_program(pid: int, signum: int) -> bool:
    """Pass a signal on: from a terminal to all of the program, as the terminal does."""
    if signum in (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH) and _in_foreground():
        return signal_group(pid, signum)
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def signal_group(pid: int, signum: int) -> bool:
    """To the program's process group, which debugpy's launcher has made."""
    try:
        os.killpg(pid, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def kill_process(pid: int, *, group: bool) -> None:
    """End a process, or the group it leads, at once; it may be gone already."""
    try:
        if group and sys.platform != "win32":
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    except (ProcessLookupError, PermissionError):
        pass
