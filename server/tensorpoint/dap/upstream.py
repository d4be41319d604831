"""debugpy's adapter: a process of ours over stdio, or one that listens already, over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from pathlib import Path

from ..serving import STREAM_LIMIT
from . import resident
from .peer import Peer

_log = logging.getLogger(__name__)
#: Longer than `debugpy_adapter` takes to end what debugpy has left.
_EXIT_SECONDS = 15.0
#: Run by its path: `-m` would let a `random.py` in the editor's working directory shadow Python's.
_ADAPTER = Path(__file__).with_name("debugpy_adapter.py")

#: DAP requests that debugpy knows by name but never answers: after one of them it answers nothing
#: any more, so the adapter refuses them (found by comparing pydevd's schema with its handlers).
NEVER_ANSWERED = frozenset(
    {
        "breakpointLocations",
        "cancel",
        "dataBreakpointInfo",
        "disassemble",
        "loadedSources",
        "readMemory",
        "restart",
        "restartFrame",
        "reverseContinue",
        "setDataBreakpoints",
        "setInstructionBreakpoints",
        "stepBack",
        "terminateThreads",
        "writeMemory",
    }
)


class Upstream:
    """A connection to debugpy's adapter, and its process if we started it."""

    def __init__(self, peer: Peer, process: asyncio.subprocess.Process | None = None) -> None:
        self.peer = peer
        self._process = process

    @classmethod
    async def spawn(cls, log_dir: Path | None) -> Upstream:
        """Start debugpy's adapter on a pair of pipes."""
        # -P: an editor's working directory may hold a random.py, which debugpy would import.
        safe_path: list[str] = ["-P"] if sys.version_info >= (3, 11) else []
        python = await asyncio.to_thread(resident.tool_command) or [sys.executable]
        command = [*python, *safe_path, "-m", f"{__package__}.debugpy_adapter"]
        if log_dir is not None:
            command += ["--log-dir", str(log_dir)]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=STREAM_LIMIT,
        )
        assert process.stdout is not None
        assert process.stdin is not None
        return cls(Peer("debugpy", process.stdout, process.stdin), process)

    @classmethod
    async def connect(cls, host: str, port: int) -> Upstream:
        """Connect to an adapter that listens. Raises OSError if nobody does."""
        reader, writer = await asyncio.open_connection(host, port, limit=STREAM_LIMIT)
        return cls(Peer(f"debugpy at {host}:{port}", reader, writer))

    async def close(self) -> None:
        """Close the connection and see our process to its end; killed if it doesn't go."""
        self.peer.close()
        if self._process is None:
            return
        try:
            await asyncio.wait_for(self._process.wait(), _EXIT_SECONDS)
        except asyncio.TimeoutError:
            _log.warning("debugpy's adapter (pid %s) does not exit: killed", self._process.pid)
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
