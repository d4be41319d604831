"""Which processes run: tests find those of a session by a mark in their environment."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tensorpoint.resident.client import Client, NoHost


def processes_with(name: str, value: str) -> dict[int, str]:
    """Command lines of the living processes that have this in their environment, by pid."""
    wanted = f"{name}={value}".encode()
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if command:  # else it is a zombie
                    found[int(folder.name)] = command.strip()
    return found


def forks() -> dict[int, str]:
    """The programs and our own processes that run as forks, of the host that adapters find.

    Their environment in /proc is the zygote's: no mark of a test is in there.
    """
    if os.environ.get("TENSORPOINT_RESIDENT") != "wait":
        return {}
    try:
        zygotes = Client(Path(os.environ["TENSORPOINT_RUNTIME_DIR"])).status().zygotes
    except NoHost:
        return {}
    return {pid: f"fork of {zygote.pid}" for zygote in zygotes for pid in zygote.running}
