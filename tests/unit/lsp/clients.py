"""A client and a server in one process, with a tracer that does as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

from pygls.io_ import run_async

from tensorpoint.lsp.server import Server
from tensorpoint.resident.jobs import Outcome
from tensorpoint.resident.messages import Environment
from tensorpoint.wire.shapes import ShapeRequest, ShapeTable
from tests.unit.lsp.documents import NET, URI, net_table

#: Enough for anything that happens in this process.
_PATIENCE = 60.0


class Tracer:
    """Answers with `answer(request)`, when `gate` is open; remembers what it was asked."""

    def __init__(self) -> None:
        self.requests: list[ShapeRequest] = []
        self.pythons: list[str] = []
        self.cancelled: list[ShapeRequest] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.answer: Callable[[ShapeRequest], ShapeTable | str] = lambda request: net_table()
        self.note = ""

    async def __call__(
        self, request: ShapeRequest, environment: Environment
    ) -> Outcome[ShapeTable]:
        self.requests.append(request)
        self.pythons.append(environment.python[0])
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(request)
            raise
        answer = self.answer(request)
        if isinstance(answer, str):
            return Outcome(None, answer)
        return Outcome(answer, note=self.note)


class Client:
    """Messages as JSON, to see what really goes over the wire."""

    def __init__(self, server: Server, tracer: Tracer) -> None:
        self.tracer = tracer
        self.server = server
        self.reader = asyncio.StreamReader()
        #: All that the server has sent.
        self.messages: list[dict[str, Any]] = []
        self.configuration: Any = None
        self._arrived = asyncio.Event()
        self._number = 0
        server.protocol.set_writer(self)  # type: ignore[arg-type]

    def write(self, data: bytes) -> None:
        message: dict[str, Any] = json.loads(data.partition(b"\r\n\r\n")[2])
        self.messages.append(message)
        self._arrived.set()
        if "id" in message and "method" in message:
            answer: Any = None
            if message["method"] == "workspace/configuration":
                answer = [self.configuration]
            self._send({"id": message["id"], "result": answer})

    def close(self) -> None:
        """As a stream."""

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.reader.feed_data(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def notify(self, method: str, **params: Any) -> None:
        self._send({"method": method, "params": params})

    def ask(self, method: str, **params: Any) -> int:
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        return self._number

    async def answer(self, number: int) -> dict[str, Any]:
        return await self.wait(
            lambda message: message.get("id") == number and "method" not in message
        )

    async def request(self, method: str, **params: Any) -> Any:
        message = await self.answer(self.ask(method, **params))
        assert "error" not in message, message
        return message.get("result")

    async def wait(
        self, wanted: Callable[[dict[str, Any]], bool], after: int = 0
    ) -> dict[str, Any]:
        """The first message after the first `after` ones that is wanted."""
        end = asyncio.get_running_loop().time() + _PATIENCE
        while True:
            self._arrived.clear()
            for message in self.messages[after:]:
                if wanted(message):
                    return message
            left = end - asyncio.get_running_loop().time()
            assert left > 0, f"not among {self.messages[after:]}"
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), left)

    async def told(self, method: str, after: int = 0) -> dict[str, Any]:
        return await self.wait(lambda message: message.get("method") == method, after)

    async def until(self, condition: Callable[[], bool]) -> None:
        end = asyncio.get_running_loop().time() + _PATIENCE
        while not condition():
            assert asyncio.get_running_loop().time() < end, self.messages
            await asyncio.sleep(0.005)

    def open(self, text: str = NET, uri: str = URI) -> None:
        document = {"uri": uri, "languageId": "python", "version": 1, "text": text}
        self.notify("textDocument/didOpen", textDocument=document)

    def change(self, text: str, version: int, uri: str = URI) -> None:
        self.notify(
            "textDocument/didChange",
            textDocument={"uri": uri, "version": version},
            contentChanges=[{"text": text}],
        )

    async def hints(self, uri: str = URI) -> list[tuple[int, str]]:
        """Lines (from 1) and labels."""
        found = await self.request(
            "textDocument/inlayHint",
            textDocument={"uri": uri},
            range={"start": {"line": 0, "character": 0}, "end": {"line": 999, "character": 0}},
        )
        return [(one["position"]["line"] + 1, one["label"]) for one in found or []]


@contextlib.asynccontextmanager
async def connected(
    capabilities: dict[str, Any] | None = None,
    options: Any = None,
    configuration: Any = None,
    **initialize: Any,
) -> AsyncGenerator[Client]:
    """A client that has said hello to a server of its own."""
    tracer = Tracer()
    server = Server(tracer)
    client = Client(server, tracer)
    client.configuration = configuration
    loop = asyncio.ensure_future(
        run_async(server.left, client.reader, server.protocol, None, server.report_server_error)
    )
    try:
        await client.request(
            "initialize",
            processId=None,
            rootUri="file:///project",
            capabilities=capabilities or {},
            initializationOptions=options,
            **initialize,
        )
        client.notify("initialized")
        yield client
    finally:
        client.reader.feed_eof()
        await loop
        await server.close()
