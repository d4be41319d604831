"""Runs debugpy's adapter as `python -m debugpy.adapter` would, sooner, and sees to its end.

At its start debugpy writes a report of the environment into its log (75 ms of CPU for reading all
installed distributions), even when no log is kept. Without `--log-dir` there is nobody to read it.

At its end it waits: a minute for a launcher that never connects, and for ever for one that reads
the output of a program that has ended, as long as a process that this has left holds the pipe, and
for a forked child that waits in turn for a session which nobody will begin. So when whoever started
us has gone, also by SIGKILL, such children are let go, it has a while, and then the rest is ended
here.
"""

from __future__ import annotations

import os
import runpy
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

#: For all that debugpy does at an end, on a loaded machine too. With the launcher's, less than
#: `upstream` waits before it kills us, which would leave the launcher.
_PATIENCE_S = 10.0
_LOOK_S = 0.5
#: A launcher without an adapter kills the program at once.
_LAUNCHER_S = 2.0


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Stands in for the report."""


def _end_with_client() -> None:
    """End what debugpy has left, some time after its standard input was closed."""
    if sys.platform != "linux":
        return  # on Windows a job object ends the program; elsewhere poll() has its own rules
    from debugpy.adapter import launchers, servers, sessions

    started: list[Any] = []

    def start(*arguments: Any, **options: Any) -> Any:
        started.append(subprocess.Popen(*arguments, **options))
        return started[-1]

    adapter: Any = launchers
    adapter.subprocess = SimpleNamespace(Popen=start)
    source = os.dup(0)  # debugpy puts something else in its place

    def wait() -> None:
        client = select.poll()
        client.register(source, 0)  # it tells of a hang-up in any case
        client.poll()
        end = time.monotonic() + _PATIENCE_S
        waiting: Any = servers
        while time.monotonic() < end:  # one that was just forked connects only now
            for connection in waiting.connections():
                if connection.server is None:
                    connection.channel.close()
            time.sleep(_LOOK_S)
        found: Any = sessions
        for session in list(found._sessions):
            with suppress(Exception):  # there is none, or it has gone already
                session.launcher.channel.close()  # by which it knows that the program is to end
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LAUNCHER_S)
            with suppress(PermissionError):  # sudo's
                process.kill()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    # The folder of this file, which holds modules of ours that debugpy must not see.
    sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(__file__)]
    # As debugpy's main does before it imports its log: nobody has to read our stderr.
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if "--log-dir" not in sys.argv:
        from debugpy.common import log

        log.describe_environment = _nothing
    _end_with_client()
    runpy.run_module("debugpy.adapter", run_name="__main__", alter_sys=True)
