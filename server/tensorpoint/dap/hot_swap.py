"""Has edited functions swapped when their file is saved: `"hotSwap": true`.

The files that the program has loaded, a few dozen, are looked at four times a second. To be told by
the system would take a watch of whole folders, data and checkpoints with them, and does not work on
network file systems; to be told by the editor works in one of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from . import injection
from .peer import Peer

_log = logging.getLogger(__name__)
_LOOK_S = 0.25
#: The program is asked for its files at each so many looks.
_ASK_EACH = 8


async def follow(debugpy: Peer, client: Peer, ended: asyncio.Event, began: float) -> None:
    """Swap until the program ends. Files that have changed since `began` are taken as edited."""
    known: dict[str, tuple[float, int]] = {}
    looks = 0
    while not ended.is_set():
        changed = [file for file in known if _stamp(file) not in (known[file], None)]
        known.update((file, stamp) for file in changed if (stamp := _stamp(file)) is not None)
        if changed or looks % _ASK_EACH == 0:
            try:
                answer = await injection.hot_swap(debugpy, changed)
            except injection.AgentError as error:
                if not ended.is_set():
                    _log.info("not swapped: %s", error)
                    for file in changed:
                        client.output(f"Tensorpoint: {file} is not swapped: {error}.", "important")
            else:
                for report in answer["reports"]:
                    client.output(describe(report))
                for file in answer["files"]:
                    known.setdefault(file, _first_stamp(file, began))
        looks += 1
        await asyncio.sleep(_LOOK_S)


def describe(report: dict[str, Any]) -> str:
    """What became of one file, for the debug console."""
    lines = [f"{name} has its new code" for name in report["swapped"]] + report["notes"]
    name = os.path.basename(report["file"])
    return "\n".join(f"Tensorpoint: {name}: {line}" for line in lines or ["nothing to swap"])


def _stamp(file: str) -> tuple[float, int] | None:
    """None while an editor replaces it: gone for a moment, or emptied before it is written."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return (status.st_mtime, status.st_size) if status.st_size else None


def _first_stamp(file: str, began: float) -> tuple[float, int]:
    """What the program has loaded; of a file that was saved since it began that isn't known."""
    stamp = _stamp(file) or (0.0, 0)
    return stamp if stamp[0] <= began else (0.0, 0)
