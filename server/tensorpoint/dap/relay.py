"""Two streams of messages and what passes between them, whatever the messages mean.

The client's messages and debugpy's are read by one task each; both run on the same event loop, so
nothing here is locked.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

from .framing import FramingError
from .peer import Message, Peer
from .upstream import Upstream

_log = logging.getLogger(__name__)


class Relay(ABC):
    """A client on one side, debugpy's adapter on the other."""

    def __init__(self, client: Peer) -> None:
        self._client = client
        self._opening: asyncio.Task[None] | None = None
        self._upstream: Upstream | None = None
        self._reading: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Whether the client has said `initialize`.
        self._greeted = False
        self._ended = asyncio.Event()
        self._over = asyncio.Event()

    @abstractmethod
    async def _open(self) -> Upstream:
        """Reach debugpy's adapter; raises OSError."""

    @abstractmethod
    async def _from_client(self, message: Message) -> None:
        """Treat an event or request of the client's."""

    @abstractmethod
    async def _from_debugpy(self, message: Message) -> None:
        """Treat an event or request of debugpy's."""

    async def run(self) -> None:
        """Serve the client until it leaves or debugpy's side has ended."""
        self._opening = asyncio.ensure_future(self._start_reading())
        serving = asyncio.ensure_future(self._read_client())
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({serving, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            serving.cancel()
            over.cancel()
            await self._finish()

    async def _start_reading(self) -> None:
        """Reach debugpy's adapter at once: a client may wait for its first events."""
        upstream = await self._open()
        self._upstream = upstream
        self._reading = asyncio.ensure_future(self._read_debugpy(upstream))

    async def _read_client(self) -> None:
        try:
            while (message := await self._client.read()) is not None:
                await self._from_client(message)
                await self._client.drain()
        except FramingError as error:
            self._give_up(f"this is not the Debug Adapter Protocol: {error}")
        except (ConnectionError, OSError) as error:
            _log.warning("the client's connection broke: %s", error)

    async def _finish(self) -> None:
        """Close both sides; what still waits for debugpy is given up."""
        for task in list(self._tasks):
            task.cancel()
        if self._opening is not None:
            await asyncio.wait({self._opening})
        if self._reading is not None and not self._greeted:
            self._reading.cancel()  # the client came for nothing, so there is nothing to tell it
        if self._upstream is not None:
            await self._upstream.close()
        if self._reading is not None:
            self._reading.cancel()
        self._client.refuse_rest("the session has ended")
        await self._client.drain()
        self._client.close()

    async def _read_debugpy(self, upstream: Upstream) -> None:
        try:
            while (message := await upstream.peer.read()) is not None:
                await self._from_debugpy(message)
                await self._client.drain()
        except Exception:
            _log.warning("debugpy's connection broke", exc_info=True)
        upstream.peer.close()
        if upstream is self._upstream:
            if not self._ended.is_set():
                self._give_up("debugpy's adapter ended; the program may still be running")
            self._over.set()

    def _pass_on(
        self,
        request: Message,
        change: Callable[[Message], None] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Forward a request to debugpy; its answer goes back, after `change` if it succeeded."""

        def answer(response: Message) -> None:
            if change is not None and response.get("success"):
                body: Message = response.get("body") or {}
                response["body"] = body
                change(body)
            self._client.send({**response, "request_seq": request["seq"]})
            if then is not None:
                then()

        self._debugpy.forward(request, answer)

    def _relay_to_client(self, request: Message) -> None:
        debugpy = self._debugpy

        def answer(response: Message) -> None:
            if request.get("command") == "runInTerminal" and not response.get("success"):
                # debugpy would wait a minute for a program that nobody starts.
                reason = response.get("message") or "the editor gave no reason"
                self._give_up(f"the program could not be started in a terminal: {reason}")
                self._over.set()
            debugpy.send({**response, "request_seq": request["seq"]})

        self._client.forward(request, answer)

    @property
    def _debugpy(self) -> Peer:
        assert self._upstream is not None
        return self._upstream.peer

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _give_up(self, reason: str) -> None:
        """Say why it ends: an adapter that exits silently shows nothing in an editor."""
        self._client.output(f"Tensorpoint: {reason}", "important")
        self._client.event("terminated")
        self._ended.set()
