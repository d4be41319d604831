"""The broker: keeps the bytes of checkpoints on devices, and lends them to programs.

One process, a child of the host, which starts it when a program with `"keepWeightsOnDevice"` loads
weights onto a device. For each file there is one buffer on each device that wants it, with the
file's bytes as they are: where a tensor is in the file it is in the buffer, whatever dtype it is
converted to after that. Programs copy out of it, within the device, and check what they have
opened by the checksums that are made here of what is read from the file.

What is lent comes back when the program says so, hangs up, or dies: of that a pidfd tells, since
children of the program may have inherited its connection. Only what nobody has open is freed. A
broker without a host ends, and takes all along.

Clients are answered on one event loop. Whatever touches a device, and may take long or hang, is
done by one other thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import logging
import os
import sys
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..wire.device_memory import DeviceError, DeviceMemory, memory_of
from ..wire.lending import BLOCK, PROBE, SOCKET, Kept, stamp_of
from .forking.link import peer

_log = logging.getLogger(__name__)
#: What is kept on each device, in all; without it a quarter of what the device has.
_MOST_MIB = os.environ.get("TENSORPOINT_DEVICE_WEIGHTS_MIB")
_IDLE_S = float(os.environ.get("TENSORPOINT_HOST_IDLE_S") or 3600)
#: How long what failed isn't tried again, and how long programs have to give back at the end.
_AGAIN_S, _GIVE_BACK_S = 60.0, 10.0
_PROBE = hashlib.shake_128(b"tensorpoint").digest(1 << 16)
T = TypeVar("T")


class _NoRoom(Exception):
    """It isn't kept; the text says why."""


class _Borrower:
    """A program that is connected."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)


@dataclass(eq=False)
class _Buffer:
    """A file on a device."""

    source: str
    stamp: list[int]
    device: str
    state: Literal["loading", "kept", "failed"] = "loading"
    note: str = ""
    address: int | None = None
    size: int = 0
    handle: str = ""
    sums: tuple[int, ...] = ()
    borrowers: set[_Borrower] = field(default_factory=set[_Borrower])
    used: float = field(default_factory=time.time)
    asked: float = field(default_factory=time.monotonic)


class Broker:
    """Keeps and lends."""

    def __init__(self, folder: Path, token: str) -> None:
        self._folder, self._token = folder, token
        self._buffers: dict[tuple[str, str], _Buffer] = {}
        #: Are to be freed when they come back.
        self._leaving: set[_Buffer] = set()
        self._memories: dict[str, DeviceMemory] = {}
        self._thread = ThreadPoolExecutor(1)
        self._loading = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self._clients: set[asyncio.StreamWriter] = set()
        self._used = time.monotonic()

    async def run(self) -> None:
        """Serve until the host has gone, all was dropped, or nobody has asked for long."""
        path = self._folder / SOCKET
        path.unlink(missing_ok=True)
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin, self._over.set)  # its end is the host's
        server = await asyncio.start_unix_server(self._on_client, str(path))
        path.chmod(0o600)
        own = path.stat().st_ino
        _log.info("broker %d listens at %s", os.getpid(), path)
        while not self._over.is_set() and time.monotonic() - self._used < _IDLE_S:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._over.wait(), min(_IDLE_S, 10.0))
        self._over.set()
        loop.remove_reader(sys.stdin)
        server.close()
        with contextlib.suppress(OSError):
            if path.stat().st_ino == own:
                path.unlink()
        end = time.monotonic() + _GIVE_BACK_S
        for buffer in [*self._buffers.values()]:
            self._let_go(buffer)
        while self._leaving and time.monotonic() < end:
            await asyncio.sleep(0.05)
        for client in self._clients:
            client.transport.abort()
        while self._clients:
            await asyncio.sleep(0)

    # Clients -------------------------------------------------------------------------------------

    async def _on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pid, uid = peer(writer.get_extra_info("socket"))
        try:
            borrower = _Borrower(pid)
        except OSError:  # it has gone, or is in a container where processes have other numbers
            writer.close()
            return
        self._clients.add(writer)
        loop = asyncio.get_running_loop()
        loop.add_reader(borrower.pidfd, functools.partial(self._on_end, borrower, writer))
        try:
            while uid == os.getuid() and (line := await reader.readline()):
                answer = await self._answer(borrower, json.loads(line))
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError, KeyError) as error:
            _log.info("a client has gone: %s", error)
        finally:
            loop.remove_reader(borrower.pidfd)
            os.close(borrower.pidfd)
            self._take_back(borrower)
            writer.close()
            self._clients.discard(writer)

    def _on_end(self, borrower: _Borrower, writer: asyncio.StreamWriter) -> None:
        """The program is dead, though a child of it may have the connection still."""
        asyncio.get_running_loop().remove_reader(borrower.pidfd)
        self._take_back(borrower)
        writer.transport.abort()

    def _take_back(self, borrower: _Borrower) -> None:
        for buffer in [*self._buffers.values(), *self._leaving]:
            if borrower in buffer.borrowers:
                self._come_back(buffer, borrower)

    async def _answer(self, borrower: _Borrower, ask: dict[str, Any]) -> dict[str, Any]:
        if ask.get("token") != self._token:
            return {"state": "refused", "note": "wrong token"}
        self._used = time.monotonic()
        if ask["ask"] == "lend":
            return self._lend(borrower, str(ask["source"]), ask["stamp"], str(ask["device"]))
        if ask["ask"] == "back":
            for buffer in [*self._buffers.values(), *self._leaving]:
                if (buffer.source, buffer.device) == (ask["source"], ask["device"]):
                    if ask["spoiled"] and borrower in buffer.borrowers:
                        _log.warning("%s on %s was spoiled", buffer.source, buffer.device)
                        self._let_go(buffer)
                    self._come_back(buffer, borrower)
        elif ask["ask"] == "list":
            return {"kept": [self._listed(each) for each in self._buffers.values() if each.source]}
        elif ask["ask"] == "drop":
            self._over.set()
        return {"state": "done"}

    def _listed(self, buffer: _Buffer) -> dict[str, Any]:
        borrowers = sorted({each.pid for each in buffer.borrowers})
        state = f"failed: {buffer.note}" if buffer.state == "failed" else buffer.state
        size = buffer.size if buffer.address is not None else 0
        return asdict(Kept(buffer.source, buffer.device, state, size, buffer.used, borrowers))

    # Lending -------------------------------------------------------------------------------------

    def _lend(
        self, borrower: _Borrower, source: str, stamp: list[int], device: str
    ) -> dict[str, Any]:
        key = source, device
        buffer = self._buffers.get(key)
        if buffer is not None and buffer.stamp != stamp:
            self._let_go(buffer)
            buffer = None
        if buffer is not None and buffer.state == "failed":
            if time.monotonic() - buffer.asked < _AGAIN_S:
                return {"state": "none", "note": buffer.note}
            buffer = None
        if buffer is None and not self._over.is_set():
            buffer = self._buffers[key] = _Buffer(source, stamp, device)
            task = asyncio.ensure_future(self._load(buffer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if buffer is None or buffer.state != "kept":
            return {"state": "none"}
        buffer.borrowers.add(borrower)
        buffer.used = time.time()
        return {"state": "lent", "handle": buffer.handle, "size": buffer.size, "sums": buffer.sums}

    def _come_back(self, buffer: _Buffer, borrower: _Borrower) -> None:
        buffer.borrowers.discard(borrower)
        if buffer in self._leaving and not buffer.borrowers:
            self._free_soon(buffer)

    def _let_go(self, buffer: _Buffer) -> None:
        """Keep it no longer: it is freed at once, or as soon as nobody has it open."""
        if self._buffers.get((buffer.source, buffer.device)) is buffer:
            del self._buffers[buffer.source, buffer.device]
        if buffer.state == "kept":  # one that is loading goes when it sees that
            self._leaving.add(buffer)
            if not buffer.borrowers:
                self._free_soon(buffer)

    def _free_soon(self, buffer: _Buffer) -> None:
        task = asyncio.ensure_future(self._free(buffer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _free(self, buffer: _Buffer) -> None:
        address, buffer.address = buffer.address, None
        if address is not None:
            memory = self._memories[buffer.device]
            try:
                await self._on_thread(lambda: memory.free(address))
            except DeviceError as error:
                _log.warning("%s: %s", buffer.source, error)
        self._leaving.discard(buffer)

    # Keeping -------------------------------------------------------------------------------------

    async def _load(self, buffer: _Buffer) -> None:
        try:
            async with self._loading:
                await self._load_now(buffer)
        except (OSError, DeviceError, _NoRoom) as error:
            buffer.note, buffer.state, buffer.asked = str(error), "failed", time.monotonic()
            _log.warning("%s is not kept on %s: %s", buffer.source, buffer.device, error)
            await self._free(buffer)

    async def _load_now(self, buffer: _Buffer) -> None:
        memory = self._memories.get(buffer.device)
        if memory is None:
            memory = await self._on_thread(lambda: memory_of(buffer.device))
            self._memories[buffer.device] = memory
        buffer.size = buffer.stamp[3] if buffer.source != PROBE else len(_PROBE)
        await self._make_room(buffer, memory)
        address = await self._on_thread(lambda: memory.allocate(buffer.size))
        buffer.address = address
        buffer.sums = await self._on_thread(lambda: _fill(memory, address, buffer))
        buffer.handle = await self._on_thread(lambda: memory.share(address))
        if self._buffers.get((buffer.source, buffer.device)) is buffer:
            buffer.state = "kept"
            _log.info("%s is kept on %s", buffer.source, buffer.device)
        else:  # it was let go meanwhile
            await self._free(buffer)

    async def _make_room(self, buffer: _Buffer, memory: DeviceMemory) -> None:
        """Let go of what was used longest ago. Raises _NoRoom."""
        _, total = await self._on_thread(memory.room)
        most = int(_MOST_MIB) << 20 if _MOST_MIB else total // 4
        if buffer.size > most:
            raise _NoRoom(
                f"it has {buffer.size >> 20} MiB, and {most >> 20} at most are kept on a device "
                "(TENSORPOINT_DEVICE_WEIGHTS_MIB)"
            )
        others = [each for each in self._on(buffer.device) if each.source and not each.borrowers]
        others.sort(key=lambda each: each.used, reverse=True)
        while not await self._fits(buffer, memory, most):
            if not others:
                raise _NoRoom(f"the device has no room for {buffer.size >> 20} MiB more")
            oldest = others.pop()
            if oldest.borrowers or oldest.address is None:
                continue  # it was lent or let go meanwhile
            del self._buffers[oldest.source, oldest.device]
            await self._free(oldest)

    async def _fits(self, buffer: _Buffer, memory: DeviceMemory, most: int) -> bool:
        """Half of what is free stays free."""
        free, _ = await self._on_thread(memory.room)
        held = sum(each.size for each in self._on(buffer.device))
        return held + buffer.size <= most and 2 * buffer.size <= free

    def _on(self, device: str) -> list[_Buffer]:
        found = {*self._buffers.values(), *self._leaving}
        return [each for each in found if each.device == device and each.address is not None]

    async def _on_thread(self, act: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, act)


def _fill(memory: DeviceMemory, address: int, buffer: _Buffer) -> tuple[int, ...]:
    """Write the file there; returns the checksums. Raises OSError if it isn't that file."""
    if buffer.source == PROBE:
        memory.write(address, bytearray(_PROBE), len(_PROBE))
        return (zlib.adler32(_PROBE),)
    block, sums = bytearray(BLOCK), list[int]()
    with open(buffer.source, "rb", buffering=0) as stream:
        for at in range(0, buffer.size, BLOCK):
            size = min(BLOCK, buffer.size - at)
            done = 0
            while done < size:
                count = stream.readinto(memoryview(block)[done:size])
                if not count:
                    raise OSError("it has become shorter")
                done += count
            memory.write(address + at, block, size)
            sums.append(zlib.adler32(memoryview(block)[:size]))
        if stamp_of(os.fstat(stream.fileno())) != buffer.stamp:
            raise OSError("it has changed")
    return tuple(sums)


def main() -> None:
    """Be the broker of a folder; the token is the first line of the standard input."""
    folder = Path(sys.argv[1])
    token = sys.stdin.readline().strip()
    logging.basicConfig(
        filename=folder / "log" / "broker.log",
        level=logging.INFO,
        format="%(asctime)s %(message)s",
    )
    asyncio.run(Broker(folder, token).run())
    logging.shutdown()
    os._exit(0)  # the other thread may be in a driver that hangs


if __name__ == "__main__":
    main()
