"""The DAP client against an adapter that says exactly what the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tensorpoint.dap.framing import encode_message, read_message
from tensorpoint.dap_client import AdapterError, AdapterGone, Body, DapClient, Event

Message = dict[str, Any]


class Adapter:
    """The other end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> Message:
        message = await asyncio.wait_for(read_message(self._reader), 5)
        assert message is not None
        return message

    def send_raw(self, data: bytes) -> None:
        self._writer.write(data)

    def send(self, **message: Any) -> None:
        self.send_raw(encode_message({"seq": 0, **message}))

    def answer(self, request: Message, success: bool = True, **fields: Any) -> None:
        self.send(
            type="response",
            request_seq=request["seq"],
            command=request["command"],
            success=success,
            **fields,
        )

    def event(self, name: str, **body: Any) -> None:
        self.send(type="event", event=name, body=body)

    def leave(self) -> None:
        self._writer.close()


def talk(
    conversation: Callable[[DapClient, Adapter], Awaitable[None]],
    **reverse: Callable[[Body], Awaitable[Body]],
) -> None:
    async def main() -> None:
        connected: asyncio.Future[Adapter] = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(
            lambda r, w: connected.set_result(Adapter(r, w)), "127.0.0.1", 0
        )
        port = server.sockets[0].getsockname()[1]
        client = await DapClient.connect("127.0.0.1", port, reverse=reverse)
        adapter = await connected
        try:
            await asyncio.wait_for(conversation(client, adapter), 10)
        finally:
            adapter.leave()
            await client.close()
            server.close()

    asyncio.run(main())


def test_answers_reach_their_requests_in_any_order() -> None:
    async def conversation(client: DapClient, adapter: Adapter) -> None:
        first, second = client.send("threads"), client.send("scopes", {"frameId": 1})
        requests = [await adapter.receive(), await adapter.receive()]
        assert requests[1]["arguments"] == {"frameId": 1}
        assert "arguments" not in requests[0]
        adapter.answer(requests[1], body={"n": 2})
        adapter.answer(requests[0], body={"n": 1})
        assert [await first, await second] == [{"n": 1}, {"n": 2}]

    talk(conversation)


def test_a_refusal_says_why() -> None:
    async def conversation(client: DapClient, adapter: Adapter) -> None:
        answer = client.send("launch")
        adapter.answer(await adapter.receive(), success=False, message="no such file")
        with pytest.raises(AdapterError, match="no such file") as caught:
            await answer
        assert caught.value.command == "launch"

    talk(conversation)


def test_events_keep_their_order_around_the_one_awaited() -> None:
    async def conversation(client: DapClient, adapter: Adapter) -> None:
        adapter.event("output", output="a")
        adapter.event("stopped", threadId=1)
        adapter.event("output", output="b")
        assert await client.wait_for_event("stopped") == {"threadId": 1}
        assert await client.next_event() == Event("output", {"output": "a"})
        assert await client.next_event() == Event("output", {"output": "b"})
        with pytest.raises(TimeoutError, match="'stopped'"):
            await client.wait_for_event("stopped", timeout=0.05)

    talk(conversation)


def test_reverse_requests_are_answered_by_their_handlers() -> None:
    async def run_in_terminal(arguments: Body) -> Body:
        return {"processId": arguments["pid"]}

    async def fail(arguments: Body) -> Body:
        raise OSError("no terminal")

    async def conversation(client: DapClient, adapter: Adapter) -> None:
        for seq, command in enumerate(["runInTerminal", "startDebugging", "unknown"]):
            adapter.send(type="request", seq=seq, command=command, arguments={"pid": 7})
        answers = {m["command"]: m for m in [await adapter.receive() for _ in range(3)]}
        assert answers["runInTerminal"]["success"] is True
        assert answers["runInTerminal"]["body"] == {"processId": 7}
        assert answers["startDebugging"]["success"] is False
        assert "no terminal" in answers["startDebugging"]["message"]
        assert "does not handle 'unknown'" in answers["unknown"]["message"]

    talk(conversation, runInTerminal=run_in_terminal, startDebugging=fail)


def test_nothing_waits_for_an_adapter_that_has_left() -> None:
    async def conversation(client: DapClient, adapter: Adapter) -> None:
        pending = client.send("threads")
        adapter.event("output", output="last words")
        adapter.leave()
        with pytest.raises(AdapterGone):
            await pending
        with pytest.raises(AdapterGone):
            await client.request("threads")
        with pytest.raises(AdapterGone, match="'stopped'"):
            await client.wait_for_event("stopped")
        assert client.gone
        assert client.take_events() == [Event("output", {"output": "last words"})]
        assert await client.next_event() is None
        assert await client.next_event() is None

    talk(conversation)


def test_garbage_ends_the_connection_and_is_shown() -> None:
    async def conversation(client: DapClient, adapter: Adapter) -> None:
        adapter.send_raw(b"Traceback (most recent call last)\n")
        with pytest.raises(AdapterGone, match="Traceback"):
            await client.request("initialize")

    talk(conversation)


def test_start_waits_for_initialized_and_hands_back_the_answer() -> None:
    async def conversation(client: DapClient, adapter: Adapter) -> None:
        starting = asyncio.ensure_future(client.start("launch", {}))
        launch = await adapter.receive()
        adapter.event("initialized")
        answer = await starting
        assert answer is not None
        assert not answer.done()
        adapter.answer(launch)
        assert await answer == {}

    talk(conversation)


def test_start_of_a_process_that_ends_at_once() -> None:
    async def conversation(client: DapClient, adapter: Adapter) -> None:
        starting = asyncio.ensure_future(client.start("launch", {}))
        adapter.answer(await adapter.receive())
        assert await starting is None

    talk(conversation)


def test_capabilities_grow() -> None:
    async def conversation(client: DapClient, adapter: Adapter) -> None:
        answer = client.send("initialize")
        adapter.answer(await adapter.receive(), body={"a": 1, "b": 1})
        await answer
        adapter.event("capabilities", capabilities={"b": 2})
        await client.wait_for_event("capabilities")
        assert client.capabilities == {"a": 1, "b": 2}

    talk(conversation)


def test_an_adapter_process_that_fails_is_quoted() -> None:
    async def main() -> None:
        client = await DapClient.spawn(["sh", "-c", "echo 'no module named x' >&2; exit 1"])
        with pytest.raises(AdapterGone):
            await client.request("initialize", timeout=10)
        await client.close()
        assert client.stderr_text() == "no module named x\n"

    asyncio.run(main())


def test_an_adapter_process_that_does_not_leave_is_killed() -> None:
    async def main() -> None:
        client = await DapClient.spawn(["sh", "-c", "sleep 300"])
        with pytest.raises(TimeoutError, match="'initialize' within"):
            await client.request("initialize", timeout=0.1)
        await client.close(grace=0.1)
        assert client.process is not None
        assert client.process.returncode == -9

    asyncio.run(main())
