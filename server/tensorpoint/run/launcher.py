"""debugpy's launcher, started by us, so that the program has our own standard streams.

The adapter asks its client for a terminal (`runInTerminal`); we answer by starting the launcher
ourselves. It moves the program to a process group of its own and makes that the foreground group of
the terminal, which would break `tensorpoint run ... | less`, shell scripts and `&`: the terminal's
owner is then no longer the job that the shell knows. So the launcher gets a session of its own,
where it finds no terminal to take over, and the signals that reach us are passed on to the program.
What is lost is `/dev/tty` inside the program; its standard streams are still the terminal.

The launcher reports a death by signal as an exit status (-11 & 0xff), which can't be told from
`exit(245)`; `_SHIM` makes it die of the program's signal instead.
"""

from __future__ import annotations

import asyncio
import os
import sys

from ..dap_client import Body
from .signals import kill_process

_SHIM = """\
import sys
if sys.path and sys.path[0] == "":
    del sys.path[0]
import runpy
launcher = sys.argv.pop(1)
try:
    runpy.run_path(launcher, run_name="__main__")
except SystemExit as exit:
    if isinstance(exit.code, int) and exit.code < 0:
        import os, resource, signal
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            signal.signal(-exit.code, signal.SIG_DFL)
        except OSError:
            pass
        os.kill(os.getpid(), -exit.code)
    raise
"""


class Launcher:
    """The launcher's process, which ends with the program, also where that replaces itself."""

    def __init__(self) -> None:
        self.exited = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._waiting: asyncio.Task[None] | None = None

    async def start(self, arguments: Body, *, stdout_is_ours: bool) -> int:
        """Start what `runInTerminal` asks for; returns its process id."""
        command: list[str] = list(arguments["args"])
        if sys.platform != "win32":
            command[1:2] = ["-c", _SHIM, command[1]]
        # Children of the program run with frozen modules, of which pydevd warns on their stderr.
        env = {"PYDEVD_DISABLE_FILE_VALIDATION": "1", **os.environ}
        changes: dict[str, str | None] = arguments.get("env") or {}
        for name, value in changes.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        self._process = await asyncio.create_subprocess_exec(
            *command,
            cwd=arguments.get("cwd") or None,
            env=env,
            stdin=None,
            stdout=sys.stderr.fileno() if stdout_is_ours else None,
            start_new_session=sys.platform != "win32",
        )
        self._waiting = asyncio.create_task(self._wait(self._process))
        return self._process.pid

    @property
    def is_started(self) -> bool:
        return self._process is not None

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.returncode

    async def wait(self, grace: float) -> None:
        """Until it has ended, but not longer."""
        if self._process is not None:
            try:
                await asyncio.wait_for(self.exited.wait(), grace)
            except asyncio.TimeoutError:
                pass

    async def kill(self) -> None:
        """End it, and what it leads, where it has not ended."""
        if self._process is not None and self._process.returncode is None:
            kill_process(self._process.pid, group=True)
            await self._process.wait()

    async def _wait(self, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        self.exited.set()
