"""How the front ends reach the host: asked synchronously, started if there is none."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from . import places
from .messages import Answer, Ask, Environment, Status
from .runs import Measured, Run, measured
from .stubs import STUB

__all__ = [
    "Client",
    "Measured",
    "NoHost",
    "Run",
    "measured",
    "stub_command",
    "supported",
]

_START_S = 20.0
#: An answer without waiting comes within a few milliseconds: the host stats some thousand files.
_ANSWER_S = 5.0
_WAIT_S = 150.0


class NoHost(Exception):
    """There is no host, or it doesn't answer; the text says why."""


def supported() -> str:
    """Why there can be no resident process here; "" if there can."""
    if sys.platform != "linux":
        return f"not on {sys.platform}: it needs fork, pidfd and /proc"
    if not hasattr(os, "pidfd_open"):
        return "this Python was built without pidfd_open"
    return ""


def stub_command(python: Sequence[str], answer: Answer) -> list[str]:
    """What to start in the place of `python`, which is an interpreter and its options."""
    interpreter, *options = python
    return [interpreter, "-IS", STUB, answer.socket, answer.token, *options]


class Client:
    """One connection to the host of a runtime folder."""

    def __init__(self, folder: Path | None = None) -> None:
        try:
            self._folder = places.runtime_folder() if folder is None else folder
        except places.NoPlace as error:
            raise NoHost(str(error)) from None

    def acquire(self, environment: Environment, wait: bool = False) -> Answer:
        """Where a process in this environment can be had. Raises `NoHost`."""
        return self._ask("acquire", environment, wait=wait)

    def learn(self, environment: Environment, names: Sequence[str]) -> None:
        """Tell what a program has imported. Raises `NoHost`."""
        self._ask("learn", environment, names=tuple(names))

    def status(self) -> Status:
        """What the host says of itself. Raises `NoHost`."""
        status = self._ask("status").status
        if status is None:
            raise NoHost("the host doesn't say how it is")
        return status

    def restart(self) -> None:
        """Have all zygotes replaced. Raises `NoHost`."""
        self._ask("restart")

    def stop(self) -> None:
        """End the host and its zygotes, and wait until it has gone. Raises `NoHost`."""
        pid = self.status().pid
        self._ask("stop")
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            lock = places.lock(self._folder)
            if lock is not None:
                os.close(lock)
                return
            time.sleep(0.02)
        raise NoHost(f"the host (process {pid}) does not end")

    def start(self) -> None:
        """Start a host unless there is one, and wait until it answers. Raises `NoHost`."""
        end = time.monotonic() + _START_S
        process: subprocess.Popen[bytes] | None = None
        while True:
            with contextlib.suppress(NoHost):
                self._connect().close()
                return
            if process is None:
                process = self._spawn()
            elif process.poll() not in (None, 0):
                log = places.log_folder(self._folder) / "host.err"
                raise NoHost(f"it did not start; {log} says why")
            if time.monotonic() > end:
                raise NoHost(f"it did not start within {_START_S:.0f} s")
            time.sleep(0.02)

    def _spawn(self) -> subprocess.Popen[bytes]:
        safe_path: list[str] = ["-P"] if sys.version_info >= (3, 11) else []
        try:
            with open(places.log_folder(self._folder) / "host.err", "ab") as log:
                return subprocess.Popen(
                    [sys.executable, *safe_path, "-m", "tensorpoint", "host", "serve"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env={**os.environ, places.RUNTIME_VARIABLE: str(self._folder)},
                    start_new_session=True,
                )
        except OSError as error:  # no room there, or no more processes
            raise NoHost(f"it can't be started: {self._folder}: {error.strerror}") from None

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(_ANSWER_S)
        try:
            connection.connect(str(places.host_socket(self._folder)))
        except OSError as error:
            connection.close()
            raise NoHost(f"no host is running ({error.strerror})") from None
        return connection

    def _ask(
        self,
        command: str,
        environment: Environment | None = None,
        *,
        wait: bool = False,
        names: tuple[str, ...] = (),
    ) -> Answer:
        connection = self._connect()
        connection.settimeout(_WAIT_S if wait else _ANSWER_S)
        token = places.read_token(self._folder)
        ask = Ask(token, command, environment, wait, names)  # type: ignore[arg-type]
        try:
            with connection, connection.makefile("rwb") as stream:
                stream.write(msgspec.json.encode(ask) + b"\n")
                stream.flush()
                answer = msgspec.json.decode(stream.readline(), type=Answer)
        except UnicodeEncodeError:
            return Answer("unavailable", note="a variable of its environment is not UTF-8")
        except (OSError, msgspec.MsgspecError) as error:
            raise NoHost(f"the host does not answer: {error}") from None
        if answer.state == "refused":
            raise NoHost(f"the host refuses: {answer.note}")
        return answer
