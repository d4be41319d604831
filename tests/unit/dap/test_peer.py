"""Numbers, answers, and a side that goes away."""

from __future__ import annotations

import asyncio
from typing import Any

from tensorpoint.dap.framing import encode_message, read_message
from tensorpoint.dap.peer import Peer

Message = dict[str, Any]


class Sink:
    """What was written, as messages."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.closed = False

    def write(self, data: bytes) -> None:
        self.reader.feed_data(data)

    async def drain(self) -> None: ...

    def close(self) -> None:
        self.closed = True
        self.reader.feed_eof()


def pair() -> tuple[Peer, asyncio.StreamReader, Sink]:
    reader, sink = asyncio.StreamReader(), Sink()
    return Peer("other side", reader, sink), reader, sink


def test_answers_find_their_requests_whatever_their_order() -> None:
    async def check() -> None:
        peer, reader, sink = pair()
        reading = asyncio.ensure_future(peer.read())
        asked = [asyncio.ensure_future(peer.request("threads")) for _ in range(3)]
        await asyncio.sleep(0)
        sent = [await read_message(sink.reader) for _ in asked]
        numbers = [message["seq"] for message in sent if message]
        for number in reversed(numbers):
            answer = {"type": "response", "request_seq": number, "success": True, "body": number}
            reader.feed_data(encode_message(answer))
        assert [(await answer)["body"] for answer in asked] == numbers
        reader.feed_data(encode_message({"type": "event", "event": "x"}))
        assert await reading == {"type": "event", "event": "x"}

    asyncio.run(check())


def test_stray_answers_are_dropped() -> None:
    async def check() -> None:
        peer, reader, _ = pair()
        for number in (99, None, "1", [1], {}):
            stray = {"type": "response", "request_seq": number, "success": True}
            reader.feed_data(encode_message(stray))
        reader.feed_eof()
        assert await peer.read() is None

    asyncio.run(check())


def test_what_waits_for_a_side_that_goes_away_is_failed() -> None:
    async def check() -> None:
        peer, _, sink = pair()
        answers: list[Message] = []
        peer.forward({"type": "request", "command": "launch"}, answers.append)
        asked = asyncio.ensure_future(peer.request("threads"))
        await asyncio.sleep(0)
        peer.close()
        peer.close()
        assert sink.closed
        assert [answer["success"] for answer in (*answers, await asked)] == [False, False]
        assert answers[0]["command"] == "launch"
        assert answers[0]["message"] == "other side went away"
        # And what comes later at once.
        late = await peer.request("threads")
        assert not late["success"] and "went away" in late["message"]

    asyncio.run(check())


def test_each_request_gets_one_answer() -> None:
    async def check() -> None:
        peer, reader, sink = pair()
        for number, command in enumerate(("launch", "threads", "scopes")):
            request = {"type": "request", "command": command, "seq": number}
            reader.feed_data(encode_message(request))
            assert await peer.read() == request
        for body in ({"threads": []}, {"threads": [1]}):
            peer.respond({"seq": 1, "command": "threads"}, body)
        peer.refuse_rest("the session has ended")
        peer.refuse_rest("the session has ended")
        peer.close()
        told = []
        while (message := await read_message(sink.reader)) is not None:
            told.append((message["request_seq"], message.get("message"), message["body"]))
        assert [number for number, _, _ in told] == [1, 0, 2]
        assert told[0][2] == {"threads": []}
        assert {reason for _, reason, _ in told[1:]} == {"the session has ended"}

    asyncio.run(check())
