"""Packs: files in memory with the tensors of a checkpoint, converted to another dtype.

Written and mapped by the agent, listed and dropped by `tensorpoint host weights`. A pack is the
bytes of its tensors, an index of them as JSON, and the length of that with a mark.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_FOOTER = struct.Struct("<Q8s")
_MARK = b"tp-pack1"


@dataclass(frozen=True)
class Pack:
    """One that is there. `used` is when a program last mapped it, in seconds since 1970."""

    path: str
    source: str
    dtype: str
    tensors: int
    bytes: int
    used: float


def folder() -> str:
    """Where the packs of this user are (Linux)."""
    return f"/dev/shm/tensorpoint-{os.getuid()}-weights"


def tail(index: dict[str, Any]) -> bytes:
    """What stands behind the tensors."""
    text = json.dumps(index).encode()
    return text + _FOOTER.pack(len(text), _MARK)


def index_of(data: Any) -> dict[str, Any] | None:
    """The index in the bytes of a pack; None if it is none."""
    end = len(data) - _FOOTER.size
    if end < 0:
        return None
    length, mark = _FOOTER.unpack(data[end:])
    if mark != _MARK or length > end:
        return None
    return json.loads(data[end - length : end])


def packs() -> list[Pack]:
    """All that are there, the last used first."""
    found: list[Pack] = []
    with suppress(OSError):
        for entry in os.scandir(folder()):
            with suppress(OSError, ValueError, KeyError):
                if entry.name.endswith(".pack") and (index := _read_index(entry.path)):
                    status, kept = entry.stat(), len(index["tensors"])
                    source, dtype = str(index["source"]), str(index["dtype"])
                    size, used = status.st_size, status.st_mtime
                    found.append(Pack(entry.path, source, dtype, kept, size, used))
    return sorted(found, key=lambda pack: pack.used, reverse=True)


def _read_index(path: str) -> dict[str, Any] | None:
    with (
        open(path, "rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return index_of(data)
