"""Has a launch come from the resident process: a stub takes the place of the interpreter.

debugpy's own launcher starts the stub, so that terminals, output, exit codes, stop on entry and
the end of a session are what they are without it. Where there is no zygote (yet), the launch is an
ordinary one, and one line says so.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Any

from ..resident import client as resident
from ..resident.messages import Answer, Environment
from ..resident.places import RESIDENT_VARIABLE

_log = logging.getLogger(__name__)
#: Our own processes: debugpy's adapter, its launcher.
TOOLS = Environment(
    (sys.executable, *(("-P",) if sys.version_info >= (3, 11) else ())),
    dict(os.environ),
    ("tensorpoint.dap.preloaded",),
    tools=True,
)
#: The keys in launch arguments: whether the resident process is used, what it imports besides.
RESIDENT, PRELOAD = "resident", "preload"


def take_resident(arguments: dict[str, Any]) -> bool:
    """Remove our key from `arguments`: whether the resident process is wanted.

    Raises ValueError, with what to write instead, if it is something else than a boolean.
    """
    given: Any = arguments.pop(RESIDENT, None)
    if given is not None and not isinstance(given, bool):
        raise ValueError(f'"{RESIDENT}" must be true or false')
    if os.environ.get(RESIDENT_VARIABLE) == "0" or arguments.get("sudo"):
        return False
    return given is not False and (given is True or not resident.supported())


def take_preload(arguments: dict[str, Any]) -> tuple[str, ...]:
    """Remove our key from `arguments`: the modules that shall be imported ahead.

    Raises ValueError, with what to write instead, if it is something else than a list of names.
    """
    given: Any = arguments.pop(PRELOAD, None)
    names: list[Any] = [] if given is None else given
    if not isinstance(given, list | None) or not all(_is_module(name) for name in names):
        raise ValueError(
            f'"{PRELOAD}" must be a list of names of modules, for example "{PRELOAD}": '
            '["diffusers", "my_package.models"]'
        )
    return tuple(names)


def _is_module(name: Any) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))


def tool_command() -> list[str] | None:
    """What starts a process of ours in the place of `sys.executable`; None if nothing is ready."""
    answer = _acquire_tools()
    return None if answer is None else resident.stub_command([sys.executable], answer)


def tool_executable() -> str | None:
    """The same as a file."""
    answer = _acquire_tools()
    return None if answer is None else answer.executable


def _acquire_tools() -> Answer | None:
    if os.environ.get(RESIDENT_VARIABLE) == "0" or resident.supported():
        return None
    try:
        answer = resident.Client().acquire(TOOLS, os.environ.get(RESIDENT_VARIABLE) == "wait")
    except resident.NoHost:
        return None
    return answer if answer.state == "ready" else None


class Launch:
    """One launch from the resident process."""

    def __init__(self, arguments: dict[str, Any], preload: tuple[str, ...] = ()) -> None:
        self._preload = preload
        self._arguments = arguments
        key = "pythonPath" if "python" not in arguments and "pythonPath" in arguments else "python"
        given: Any = arguments.get(key) or sys.executable
        self._key = key
        self._python: list[str] = [given] if isinstance(given, str) else [*map(str, given)]
        self.environment = self._environment()
        #: Whether a zygote runs the program.
        self.resident = False

    def prepare(self) -> str:
        """Put the stub into the arguments, if a zygote is ready; returns what to tell the user.

        Blocks for milliseconds; until a zygote is ready if `TENSORPOINT_RESIDENT` is "wait".
        """
        why_not = resident.supported()
        if why_not:
            return f"there is no resident process here ({why_not}); this is an ordinary launch"
        mode = os.environ.get(RESIDENT_VARIABLE)
        wait = mode == "wait"
        try:
            client = resident.Client()
        except resident.NoHost as error:  # nor will there be one next time
            return f"an ordinary launch, without the resident process ({error})"
        try:
            if wait:
                client.start()
            answer = client.acquire(self.environment, wait)
        except resident.NoHost as error:
            _log.info("no host: %s", error)
            if mode == "running":
                return ""
            threading.Thread(target=self._start_host, daemon=True).start()
            answer = Answer("starting")
        if answer.state == "ready":
            self._put_stub(answer)
            return answer.note
        why = f" ({answer.note})" if answer.note else ""
        if answer.state == "starting":
            return (
                f"a resident process for {self._python[0]} is being started{why}: this launch is "
                "an ordinary one, the next will be quick"
            )
        return f"an ordinary launch, without the resident process{why}"

    def learn(self, names: list[str]) -> None:
        """Tell the host what the program has imported."""
        try:
            resident.Client().learn(self.environment, names)
        except resident.NoHost as error:
            _log.info("nobody learns: %s", error)

    def _start_host(self) -> None:
        try:
            client = resident.Client()
            client.start()
            client.acquire(self.environment)
        except resident.NoHost as error:
            _log.warning("no host could be started: %s", error)

    def _put_stub(self, answer: Answer) -> None:
        if "debugLauncherPython" not in self._arguments:
            launcher = self._python[0]
            if self._arguments.get("console") == "internalConsole":
                launcher = tool_executable() or launcher
            self._arguments["debugLauncherPython"] = launcher
        self._arguments[self._key] = resident.stub_command(self._python, answer)
        self.resident = True

    def _environment(self) -> Environment:
        changes: dict[str, str | None] = self._arguments.get("env") or {}
        variables = {**os.environ, **{k: v for k, v in changes.items() if v is not None}}
        for name, value in changes.items():
            if value is None:
                variables.pop(name, None)
        if self._arguments.get("gevent"):  # as debugpy's launcher does
            variables["GEVENT_SUPPORT"] = "True"
        interpreter, *options = self._python
        if os.sep in interpreter:
            interpreter = os.path.join(self._arguments.get("cwd") or os.getcwd(), interpreter)
        python_args: Any = self._arguments.get("pythonArgs") or []
        python = (interpreter, *options, *map(str, python_args))
        return Environment(python, variables, self._preload)
