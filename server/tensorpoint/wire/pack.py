"""Packs: folders in memory with what was converted or copied of a checkpoint.

Made and mapped by the agent, listed and dropped by `tensorpoint host weights`. A pack is of one
state of one file and one dtype. It has a file that says so, and one for each tensor.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass

#: What a pack is of, as JSON.
ABOUT = "about"


@dataclass(frozen=True)
class Pack:
    """One that is there. `used` is when a program last looked into it, in seconds since 1970.

    `dtype` is "" for a copy of the file as it is.
    """

    path: str
    source: str
    dtype: str
    tensors: int
    bytes: int
    used: float


def folder() -> str:
    """Where the packs of this user are (Linux)."""
    return f"/dev/shm/tensorpoint-{os.getuid()}-weights"


def path_of(source: str, dtype: str) -> str:
    """The pack of a file as it is now. Raises OSError if there is no such file."""
    real = os.path.realpath(source)
    status = os.stat(real)
    key = [real, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size, dtype]
    return f"{folder()}/{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]}"


def original(copy: str) -> str:
    """The file that a file in a pack is a copy of; "" if it is none, or has changed since."""
    where = os.path.dirname(copy)
    try:
        found = _read(where)
        return found.source if path_of(found.source, "") == where else ""
    except (OSError, ValueError, KeyError):
        return ""


def packs() -> list[Pack]:
    """All that are there, the last used first."""
    found: list[Pack] = []
    with suppress(OSError):
        for entry in os.scandir(folder()):
            with suppress(OSError, ValueError, KeyError):
                found.append(_read(entry.path))
    return sorted(found, key=lambda pack: pack.used, reverse=True)


def _read(path: str) -> Pack:
    with open(f"{path}/{ABOUT}", encoding="utf-8") as stream:
        about = json.load(stream)
    sizes = [each.stat().st_size for each in os.scandir(path) if each.name != ABOUT]
    used = os.stat(path).st_mtime
    return Pack(path, str(about["source"]), str(about["dtype"]), len(sizes), sum(sizes), used)
