"""Child sessions: the processes a debuggee starts come through this proxy as well.

debugpy tells the client to attach to a child at its own address; we put the address of a listener
of ours in its place, so that the client's new session has an agent too, and put the real one back
when that session attaches.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import psutil

from ..serving import STREAM_LIMIT

Message = dict[str, Any]
OnConnection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class ChildListener:
    """A loopback port at which the client's child sessions arrive; opened when first needed."""

    def __init__(self, on_connection: Callable[[ChildListener], OnConnection]) -> None:
        self._on_connection = on_connection(self)
        self._server: asyncio.Server | None = None
        #: debugpy's own address for child sessions, as (host, port).
        self.real: tuple[str, int] | None = None
        #: Whether the processes run on this machine, so that they can be asked who they are.
        self.is_local = False

    async def redirect(self, configuration: Message) -> None:
        """Put our address into an attach configuration for a child, and name it by its rank."""
        name = _name_of(configuration.get("subProcessId")) if self.is_local else None
        if name is not None:
            configuration["name"] = name
        connect: Message | None = configuration.get("connect")
        if not isinstance(connect, dict) or "port" not in connect:  # pyright: ignore[reportUnnecessaryIsInstance]
            return
        self.real = (str(connect.get("host") or "127.0.0.1"), int(connect["port"]))
        if self._server is None:
            self._server = await asyncio.start_server(
                self._on_connection, "127.0.0.1", 0, limit=STREAM_LIMIT
            )
        host, port = self._server.sockets[0].getsockname()[:2]
        configuration["connect"] = {**connect, "host": host, "port": port}

    def restore(self, arguments: Message) -> None:
        """Put debugpy's address back into the arguments of a child's attach."""
        if self.real is not None and isinstance(arguments.get("connect"), dict):
            host, port = self.real
            arguments["connect"] = {**arguments["connect"], "host": host, "port": port}

    def close(self) -> None:
        """Take no more child sessions."""
        if self._server is not None:
            with contextlib.suppress(OSError):
                self._server.close()
            self._server = None


def _name_of(pid: object) -> str | None:
    """What a process of a distributed run is: torchrun tells each rank in its environment.

    A process that a rank starts has that too; its own name begins with its process id.
    """
    if not isinstance(pid, int):
        return None
    try:
        process = psutil.Process(pid)
        rank, world = (process.environ().get(name) for name in ("RANK", "WORLD_SIZE"))
        if rank is None or world is None:
            return None
        parent = process.parent()
        is_rank = parent is None or parent.environ().get("RANK") != rank
    except (psutil.Error, OSError):
        return None
    return f"Rank {rank} of {world}" if is_rank else f"Subprocess {pid} of rank {rank}"
