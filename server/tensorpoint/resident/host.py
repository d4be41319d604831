"""`tensorpoint host serve`: knows which zygotes there are, and starts them.

There is one for each installation of each user.

A program doesn't run through here: its stub speaks with the zygote. So a host that dies takes
nothing along; its zygotes fork no more and end with their last child, and the next client starts
another host. Nor do weights that are kept on devices: of these it only starts the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from .. import __version__
from . import places
from .key import Key, Unfit, key_of
from .messages import Answer, Ask, Status
from .zygotes import Resident

_log = logging.getLogger(__name__)
_LOOK_S = float(os.environ.get("TENSORPOINT_HOST_LOOK_S") or 10)
#: Environments in which nothing has been run for so long give their memory back.
IDLE_S = float(os.environ.get("TENSORPOINT_HOST_IDLE_S") or 3600)
#: More than this many MiB in all zygotes, and those that were used longest ago go.
MEMORY_MIB = float(os.environ.get("TENSORPOINT_HOST_MEMORY_MIB") or 4096)
_LINE = 1 << 24
_BROKER = "tensorpoint.resident.broker"


class Host:
    """Answers clients. Everything here happens on one event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._token = places.new_token(folder)
        self._residents: dict[Key, Resident] = {}
        self._used = time.monotonic()
        #: Of the socket that we listen at.
        self._inode = 0
        self._over = asyncio.Event()
        #: Keeps weights on devices (`broker`), once a program wants that.
        self._broker: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Serve until told to stop, or until nothing has been asked for a long time."""
        socket = places.host_socket(self._folder)
        for left in (socket, *self._folder.glob("zygote-*"), *self._folder.glob("dap-*")):
            left.unlink(missing_ok=True)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._over.set)
        server = await asyncio.start_unix_server(self._on_client, str(socket), limit=_LINE)
        socket.chmod(0o600)
        self._inode = socket.stat().st_ino
        tidying = asyncio.ensure_future(self._tidy())
        _log.info("host %d listens at %s", os.getpid(), socket)
        await self._over.wait()
        tidying.cancel()
        server.close()
        if self._is_reachable():
            socket.unlink()
        await asyncio.gather(*(resident.stop() for resident in self._residents.values()))
        broker = self._running_broker()
        if broker is not None:
            broker.kill()
            await broker.wait()

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._used = time.monotonic()
        try:
            while line := await reader.readline():
                answer = await self._answer(line)
                writer.write(msgspec.json.encode(answer) + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError) as error:
            _log.info("a client has gone: %s", error)
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> Answer:
        try:
            ask = msgspec.json.decode(line, type=Ask)
        except msgspec.MsgspecError as error:
            return Answer("refused", note=str(error))
        if ask.token != self._token:
            return Answer("refused", note="wrong token")
        if ask.command == "status":
            return Answer("done", status=self._status())
        if ask.command == "stop":
            asyncio.get_running_loop().call_soon(self._over.set)
            return Answer("done")
        if ask.command == "restart":
            for resident in self._residents.values():
                resident.restart()
            return Answer("done")
        if ask.command == "broker":
            return await self._start_broker()
        if ask.environment is None:
            return Answer("refused", note=f"{ask.command} needs an environment")
        try:
            key = key_of(ask.environment)
        except (Unfit, OSError) as error:
            return Answer("unavailable", note=str(error))
        resident = self._residents.get(key)
        if resident is None:
            resident = Resident(key, ask.environment, self._folder, self._token)
            self._residents[key] = resident
        if ask.command == "learn":
            resident.learn(ask.names)
            return Answer("done")
        return await resident.acquire(ask.environment, ask.wait)

    async def _start_broker(self) -> Answer:
        if self._running_broker() is not None:
            return Answer("done")
        variables = dict(os.environ)
        variables.pop("CUDA_VISIBLE_DEVICES", None)  # programs may use other GPUs than the host's
        safe_path: list[str] = ["-P"] if sys.version_info >= (3, 11) else []
        try:
            with (places.log_folder(self._folder) / "broker.log").open("ab") as log:
                self._broker = await asyncio.create_subprocess_exec(
                    *(sys.executable, *safe_path, "-m", _BROKER, str(self._folder)),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=variables,
                    start_new_session=True,
                )
        except OSError as error:
            return Answer("unavailable", note=f"weights can't be kept: {error.strerror}")
        assert self._broker.stdin is not None
        self._broker.stdin.write(f"{self._token}\n".encode())
        return Answer("done")

    def _running_broker(self) -> asyncio.subprocess.Process | None:
        broker = self._broker
        return broker if broker is not None and broker.returncode is None else None

    def _status(self) -> Status:
        return Status(
            pid=os.getpid(),
            folder=str(self._folder),
            version=__version__,
            zygotes=tuple(resident.status() for resident in self._residents.values()),
            limits={"idle_s": IDLE_S, "memory_mib": MEMORY_MIB},
        )

    def _is_reachable(self) -> bool:
        """Whether clients still find us: somebody may have cleared the folder away."""
        try:
            return places.host_socket(self._folder).stat().st_ino == self._inode
        except OSError:
            return False

    async def _tidy(self) -> None:
        """Now and then: give back what nobody uses."""
        while True:
            with contextlib.suppress(OSError):  # the folder was cleared away, which is seen below
                places.tidy_logs(self._folder)
            await asyncio.sleep(min(_LOOK_S, IDLE_S))
            now, lost = time.monotonic(), not self._is_reachable()
            by_age = sorted(self._residents.values(), key=lambda resident: resident.used)
            memory = sum(resident.memory() for resident in by_age)
            for resident in by_age:
                over = memory > MEMORY_MIB and len(self._residents) > 1
                if resident.idle and (over or lost or now - resident.used > IDLE_S):
                    memory -= resident.memory()
                    del self._residents[resident.key]  # first: who asks meanwhile gets another
                    await resident.stop()
            if (
                not self._residents
                and not self._running_broker()
                and (lost or now - self._used > IDLE_S)
            ):
                self._over.set()


def serve() -> int:
    """Be the host of this user, unless there is one; returns the exit status."""
    try:
        folder = places.runtime_folder()
    except places.NoPlace as error:
        print(f"tensorpoint host: {error}", file=sys.stderr)
        return 1
    lock = places.lock(folder)
    if lock is None:
        return 0
    logging.basicConfig(
        filename=places.log_folder(folder) / "host.log",
        level=logging.INFO,
        format="%(asctime)s %(message)s",
    )
    with contextlib.closing(os.fdopen(lock)):
        asyncio.run(Host(folder).run())
    return 0
