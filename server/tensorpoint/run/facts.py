"""`tensorpoint run --facts FILE`: the file, and asking the program to write it.

The program writes it itself when it ends. That it is also asked to, at each stop and every ten
seconds, is for programs that are killed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from ..dap_client import AdapterError, AdapterGone, DapClient
from .options import STATUS_REFUSED, RunError

_EVERY_S = 10.0
_PATIENCE_S = 5.0


def prepare_facts(file: Path) -> Path:
    """Where facts will be left, absolute; facts of an earlier run are removed.

    Raises `RunError` if no file can be put there.
    """
    file = file.absolute()
    try:
        if file.exists() and not file.is_file():
            raise RunError(f"--facts: {file} is not a file", STATUS_REFUSED)
        with tempfile.TemporaryFile(dir=file.parent):  # as the program will, which replaces it
            file.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"--facts: cannot write {file}: {error.strerror}", STATUS_REFUSED) from None
    return file


async def leave_facts(client: DapClient, ended: asyncio.Event) -> None:
    """Have a process write its facts, unless it has ended."""
    if ended.is_set():
        return
    try:
        await client.request("tensorpoint/facts", {"save": True}, timeout=_PATIENCE_S)
    except (AdapterGone, TimeoutError):
        pass
    except AdapterError as error:
        if "cannot write" in error.message:  # else it ends just now
            print(f"tensorpoint: {error}", file=sys.stderr, flush=True)


async def leave_facts_now_and_then(client: DapClient, ended: asyncio.Event) -> None:
    """The same until it has ended."""
    while not ended.is_set() and not client.gone:
        try:
            await asyncio.wait_for(ended.wait(), _EVERY_S)
        except asyncio.TimeoutError:
            await leave_facts(client, ended)
