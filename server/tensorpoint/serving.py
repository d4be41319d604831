"""What our servers, `tensorpoint dap` and `tensorpoint lsp`, share: stdio or a port, logs."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import stat
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import BinaryIO, Protocol

#: asyncio's default of 64 KiB would refuse long header-less lines early; bodies are not limited.
STREAM_LIMIT = 1 << 20

_log = logging.getLogger(__name__)
_CHUNK = 1 << 16


class Writer(Protocol):
    """What a server needs of an `asyncio.StreamWriter`."""

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


#: Serves one client until it is gone; returns the exit status of a process that serves it alone.
Converse = Callable[[asyncio.StreamReader, Writer], Awaitable[int]]


def serve(
    command: str, listen: tuple[str, int] | None, allow_remote: bool, converse: Converse
) -> int:
    """Serve the client on stdio, or all that connect, until they are gone; the exit status."""
    if listen is None:
        try:
            return asyncio.run(_serve_stdio(converse))
        except KeyboardInterrupt:
            return 0
    host, port = listen
    if not allow_remote and not _is_loopback(host):
        print(
            f"tensorpoint {command}: {host} is not a loopback address. Whoever reaches this port "
            "can run code on this machine; pass --allow-remote if that is what you want.",
            file=sys.stderr,
        )
        return 2
    try:
        asyncio.run(_serve_tcp(command, host, port, converse))
    except OSError as error:
        reason = error.strerror or error
        print(f"tensorpoint {command}: cannot listen on {host}:{port}: {reason}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def start_log(command: str, folder: Path | None) -> Path | None:
    """Log into `folder`; None if that can't be done, which is no reason not to serve."""
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        logging.basicConfig(
            filename=folder / f"tensorpoint.{command}-{os.getpid()}.log",
            level=logging.DEBUG,
            format="%(asctime)s %(name)s %(levelname)s %(message)s",
        )
    except OSError as error:
        reason = error.strerror or error
        print(f"tensorpoint {command}: no logs: {folder}: {reason}", file=sys.stderr, flush=True)
        return None
    logging.getLogger("asyncio").setLevel(logging.INFO)
    return folder


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _serve_tcp(command: str, host: str, port: int, converse: Converse) -> None:
    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await converse(reader, writer)

    server = await asyncio.start_server(on_connection, host, port, limit=STREAM_LIMIT)
    for address in server.sockets:
        name, number = address.getsockname()[:2]
        print(f"tensorpoint {command}: listening on {name}:{number}", file=sys.stderr, flush=True)
    async with server:
        await server.serve_forever()


async def _serve_stdio(converse: Converse) -> int:
    source, sink = _take_stdio()
    reader = asyncio.StreamReader(limit=STREAM_LIMIT)
    loop = asyncio.get_running_loop()
    if _is_pipe(source, sink):
        # Without the way through a thread, which costs 0.2 ms a request.
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
    else:
        threading.Thread(target=_feed, args=(source, reader, loop), daemon=True).start()
    return await converse(reader, _PipeWriter(sink))


def _take_stdio() -> tuple[BinaryIO, BinaryIO]:
    """The protocol's streams; anything that is printed from here on goes to stderr."""
    source = os.fdopen(os.dup(0), "rb", buffering=0)
    sink = os.fdopen(os.dup(1), "wb", buffering=0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return source, sink


def _is_pipe(source: BinaryIO, sink: BinaryIO) -> bool:
    """Whether asyncio can wait for the source: what an editor gives us, but for Windows.

    It makes it non-blocking. That must not be a terminal, which the shell goes on with, nor a
    socket that is the sink as well.
    """
    status = os.fstat(source.fileno())
    alone = not os.path.samestat(status, os.fstat(sink.fileno()))
    pipe = stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode)
    return sys.platform != "win32" and pipe and alone


def _feed(source: BinaryIO, reader: asyncio.StreamReader, loop: asyncio.AbstractEventLoop) -> None:
    """Read stdin on a thread: asyncio can't on Windows, nor from a file."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is interested any more
        try:
            while data := os.read(source.fileno(), _CHUNK):
                loop.call_soon_threadsafe(reader.feed_data, data)
        except OSError as error:
            _log.warning("reading from the client failed: %s", error)
        loop.call_soon_threadsafe(reader.feed_eof)


class _PipeWriter:
    """stdout as a `Writer`: whole messages at once, waiting for a slow client."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._sink.write(view) :]
        except (BrokenPipeError, ValueError):
            _log.warning("the client is gone; %d bytes were not delivered", len(view))

    async def drain(self) -> None:
        """Nothing is kept back."""

    def close(self) -> None:
        self._sink.close()
