"""How a stub asks a zygote for a process: one request with file descriptors, then lines both ways.

The request is `LENGTH\n` and the `repr` of a dict, which the stub can write without importing
anything and `ast.literal_eval` reads without running anything. Then the zygote says `pid N`, and at
the end `exit N` (a status, or minus a signal); the stub says `signal N`, or `group N` for what was
typed at a terminal. A stub that has gone means that the process is to be killed: whoever killed the
stub meant the program.

By the same way a child says at its end what the program has imported.
"""

from __future__ import annotations

import ast
import socket
import struct
from dataclasses import dataclass
from typing import Any

#: A command line and a token; the kernel allows an argument list of 2 MiB.
MOST_BYTES = 4 << 20
#: What the kernel takes in one message.
MOST_FDS = 253


@dataclass(frozen=True)
class Request:
    """`python ARGV...` with these open files, as (number in the stub, number here)."""

    token: str
    argv: tuple[str, ...]
    files: tuple[tuple[int, int], ...]
    #: The process of the stub, from which cwd, environment and limits are read.
    stub: int
    #: From a child at its end, and nothing else then.
    imported: tuple[str, ...] = ()


class Malformed(Exception):
    """What came is no request."""


def receive(connection: socket.socket, received: bytearray, files: list[int]) -> Request | None:
    """Read what has arrived, into `received` and `files`; the request once it is complete.

    Raises `Malformed`, also if the other side has gone before its request was complete.
    """
    data, ancillary, _, _ = connection.recvmsg(1 << 16, socket.CMSG_SPACE(4 * MOST_FDS))
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            count = len(payload) // 4
            files += struct.unpack(f"{count}i", payload[: 4 * count])
    if not data:
        raise Malformed("ended within a request")
    received += data
    header, newline, _ = bytes(received[:32]).partition(b"\n")
    if not newline:
        if len(received) > 16:
            raise Malformed("no length")
        return None
    if not header.isdigit() or int(header) > MOST_BYTES:
        raise Malformed("no length, or too long")
    if len(received) - len(header) - 1 < int(header):
        return None
    try:
        fields = ast.literal_eval(bytes(received[len(header) + 1 :]).decode())
        return _request(fields, files, peer(connection)[0])
    except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, RecursionError) as error:
        raise Malformed(f"{type(error).__name__}: {error}") from None


def _request(fields: Any, files: list[int], stub: int) -> Request:
    if "imported" in fields:
        return Request(str(fields["token"]), (), (), stub, tuple(map(str, fields["imported"])))
    numbers: tuple[int, ...] = fields["files"]
    if len(numbers) != len(files):
        raise ValueError(f"{len(files)} files came, not {len(numbers)}")
    argv = tuple(map(str, fields["argv"]))
    return Request(str(fields["token"]), argv, tuple(zip(numbers, files)), stub)


def tell_imported(path: str, token: str, names: list[str]) -> None:
    """Say what a program has imported; nobody need hear it."""
    body = repr({"token": token, "imported": names}).encode()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            connection.connect(path)
            connection.sendall(b"%d\n%s" % (len(body), body))
    except OSError:
        pass  # the zygote has retired


def peer(connection: socket.socket) -> tuple[int, int]:
    """The process and the user on the other side."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return pid, uid
