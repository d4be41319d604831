"""How programs ask for weights that are kept on a device: a socket, a line of JSON each way.

The broker (`resident.broker`) answers. What it lends it has until the program gives it back, hangs
up, or dies. The host starts it, when it is asked for it: `start`.
"""

from __future__ import annotations

import json
import os
import select
import socket
import stat
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

#: The socket of the broker in the runtime folder, and that of the host.
SOCKET, HOST = "broker", "host"
#: Checksums are of so many bytes each.
BLOCK = 1 << 22
#: The file that stands for none: a few bytes by which a program tries whether sharing works.
PROBE = ""
_ANSWER_S, _END_S = 5.0, 15.0


class NoLender(Exception):
    """Nobody lends; the text says why."""


@dataclass(frozen=True)
class Lent:
    """A file on a device. `sums` are the `zlib.adler32` of its blocks."""

    handle: str
    size: int
    sums: tuple[int, ...]


@dataclass(frozen=True)
class Kept:
    """A file on a device, for lists. `used` is in seconds since 1970."""

    source: str
    device: str
    state: str
    bytes: int
    used: float
    borrowers: list[int]


def stamp_of(status: os.stat_result) -> list[int]:
    """The state of a file: another one is another file."""
    return [status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size]


def sums_of(data: bytes | bytearray | memoryview) -> tuple[int, ...]:
    """The checksums of all blocks."""
    view = memoryview(data)
    return tuple(zlib.adler32(view[at : at + BLOCK]) for at in range(0, len(view), BLOCK))


class Lender:
    """A connection with the broker of a runtime folder. Raises NoLender in all functions."""

    def __init__(self, folder: str) -> None:
        self._token = _token(folder)
        self._socket = _connect(f"{folder}/{SOCKET}")
        self._stream = self._socket.makefile("rwb")

    def lend(self, source: str, stamp: list[int], device: str) -> Lent | str:
        """What is kept of a file; else why nothing is yet ("": it is being read now)."""
        answer = self._ask(ask="lend", source=source, stamp=stamp, device=device)
        if answer.get("state") != "lent":
            return str(answer.get("note", ""))
        return Lent(str(answer["handle"]), int(answer["size"]), tuple(answer["sums"]))

    def give_back(self, source: str, device: str, *, spoiled: bool = False) -> None:
        """What was lent is closed here; `spoiled` if it isn't what is in the file."""
        self._ask(ask="back", source=source, device=device, spoiled=spoiled)

    def listing(self) -> list[Kept]:
        """All that is kept."""
        found: list[dict[str, Any]] = self._ask(ask="list")["kept"]
        return [Kept(**each) for each in found]

    def drop(self) -> None:
        """Keep nothing any longer; returns when the broker has ended."""
        self._ask(ask="drop")
        self._socket.settimeout(_END_S)
        with suppress(OSError):
            self._stream.readline()

    def is_there(self) -> bool:
        """Whether it lives: it says nothing unless it is asked."""
        readable, _, _ = select.select([self._socket], [], [], 0)
        return not readable

    def close(self) -> None:
        """Hang up, which gives everything back."""
        with suppress(OSError):  # it has gone before us
            self._stream.close()
        self._socket.close()

    def __enter__(self) -> Lender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, **message: object) -> dict[str, Any]:
        return _exchange(self._stream, {"token": self._token, **message})


def start(folder: str) -> None:
    """Have the host start a broker, unless there is one. Raises NoLender."""
    with _connect(f"{folder}/{HOST}") as connection, connection.makefile("rwb") as stream:
        answer = _exchange(stream, {"token": _token(folder), "command": "broker"})
    if answer.get("state") != "done":
        raise NoLender(str(answer.get("note", "")))


def _exchange(stream: Any, message: dict[str, object]) -> dict[str, Any]:
    try:
        stream.write(json.dumps(message).encode() + b"\n")
        stream.flush()
        answer: Any = json.loads(stream.readline())
    except (OSError, ValueError) as error:
        raise NoLender(f"the resident process does not answer ({error})") from None
    if answer.get("state") == "refused":
        raise NoLender(f"the resident process refuses ({answer.get('note', '')})")
    return answer


def _connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_ANSWER_S)
    try:
        connection.connect(path)
    except OSError as error:
        connection.close()
        raise NoLender(f"no resident process is running ({error.strerror})") from None
    return connection


def _token(folder: str) -> str:
    try:
        status = os.lstat(folder)
        if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
            raise NoLender(f"{folder} is another user's")
        with open(f"{folder}/token", encoding="ascii") as stream:
            return stream.read()
    except OSError as error:
        raise NoLender(f"no resident process is running ({error.strerror})") from None
