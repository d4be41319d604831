"""One side of a session: numbers what is sent to it and matches what it answers."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any

from ..serving import Writer
from .framing import encode_message, read_message

Message = dict[str, Any]
OnResponse = Callable[[Message], None]

_log = logging.getLogger(__name__)
#: Characters of a message that go into the log.
_LOGGED = 4000


class Peer:
    """Messages to and from one side, with sequence numbers of our own.

    Both sides of a proxy number their messages themselves; since we add messages to either
    stream, everything is renumbered and answers are matched by the number we gave.
    """

    def __init__(self, name: str, reader: asyncio.StreamReader, writer: Writer) -> None:
        self.name = name
        self._reader = reader
        self._writer = writer
        self._sequence = itertools.count(1)
        self._waiting: dict[int, tuple[Message, OnResponse]] = {}
        #: The requests of this side that have no answer yet: each gets exactly one.
        self._unanswered: dict[int, Message] = {}
        self.closed = False

    async def read(self) -> Message | None:
        """The next event or request (or None at the end); responses go to who asked."""
        while True:
            message = await read_message(self._reader)
            if message is None:
                return None
            _log.debug("%s -> %.*s", self.name, _LOGGED, message)
            if message.get("type") != "response":
                if is_request(message):
                    self._unanswered[message["seq"]] = message
                return message
            number = message.get("request_seq")
            waiting = self._waiting.pop(number, None) if isinstance(number, int) else None
            if waiting is None:
                _log.warning("%s answered a request that was not sent: %s", self.name, message)
            else:
                _, on_response = waiting
                on_response(message)

    def send(self, message: Message) -> int:
        """Send `message` under the next sequence number, which is returned."""
        sequence = next(self._sequence)
        if message.get("type") == "response":
            if self._unanswered.pop(message.get("request_seq", 0), None) is None:
                _log.warning("a second answer is not sent to %s: %s", self.name, message)
                return sequence
        numbered = {**message, "seq": sequence}
        _log.debug("%s <- %.*s", self.name, _LOGGED, numbered)
        if not self.closed:
            self._writer.write(encode_message(numbered))
        return sequence

    async def drain(self) -> None:
        """Wait until the other side has taken what was sent; it may be gone."""
        try:
            await self._writer.drain()
        except (ConnectionError, OSError):
            self.closed = True

    def event(self, name: str, body: Message | None = None) -> None:
        """Send an event."""
        self.send({"type": "event", "event": name, "body": body or {}})

    def output(self, text: str, category: str = "console") -> None:
        """Send an `output` event of one or more lines."""
        self.event("output", {"category": category, "output": text.rstrip("\n") + "\n"})

    def respond(self, request: Message, body: Message | None = None) -> None:
        """Answer `request` with success."""
        self.send(
            {
                "type": "response",
                "request_seq": request["seq"],
                "command": request["command"],
                "success": True,
                "body": body or {},
            }
        )

    def refuse(self, request: Message, reason: str) -> None:
        """Answer `request` with a failure that the client shows."""
        self.send(
            {
                "type": "response",
                "request_seq": request["seq"],
                "command": request["command"],
                "success": False,
                "message": reason,
                "body": {"error": {"id": 1, "format": reason, "showUser": True}},
            }
        )

    def refuse_rest(self, reason: str) -> None:
        """Refuse what this side has asked for and nobody will answer any more."""
        for request in list(self._unanswered.values()):
            self.refuse(request, reason)

    def forward(self, request: Message, on_response: OnResponse) -> None:
        """Send a request; `on_response` gets its answer, a failure if this side goes away first."""
        if self.closed:
            on_response(self._lost(request))
        else:
            self._waiting[self.send(request)] = request, on_response

    async def request(self, command: str, arguments: Message | None = None) -> Message:
        """Send a request of our own; returns the response message, whether success or not."""
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

        def settle(message: Message) -> None:
            if not answer.done():
                answer.set_result(message)

        self.forward({"type": "request", "command": command, "arguments": arguments or {}}, settle)
        return await answer

    def close(self) -> None:
        """Close the stream to this side and fail what still waits for it."""
        if not self.closed:
            self.closed = True
            self._writer.close()
        waiting, self._waiting = self._waiting, {}
        for request, on_response in waiting.values():
            on_response(self._lost(request))

    def _lost(self, request: Message) -> Message:
        return {
            "type": "response",
            "command": request["command"],
            "success": False,
            "message": f"{self.name} went away",
        }


def is_request(message: Message) -> bool:
    """Whether it is one that can be answered."""
    return (
        message.get("type") == "request"
        and isinstance(message.get("command"), str)
        and isinstance(message.get("seq"), int)
    )
