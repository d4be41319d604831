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

    async def redirect(self, configuration: Message) -> None:
        """Put our address into an attach configuration for a child."""
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
