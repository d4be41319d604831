"""A small client of the Debug Adapter Protocol: what `run`, `doctor` and the tests drive with.

It speaks to one session of an adapter, over the pipes of a process that it starts or over TCP.
Requests are awaited, events queue up in the order of their arrival, reverse requests are answered
by the handlers given. It knows nothing about tensorpoints.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorpoint.dap.framing import FramingError, encode_message, read_message

Body = dict[str, Any]
ReverseHandler = Callable[[Body], Awaitable[Body]]

_STDERR_CHARS = 20_000


class AdapterError(Exception):
    """A request that the adapter answered with `success: false`."""

    def __init__(self, command: str, message: str, body: Body) -> None:
        super().__init__(message)
        self.command = command
        self.message = message
        self.body = body


class AdapterGone(Exception):
    """The connection to the adapter ended while an answer was awaited."""


@dataclass(frozen=True)
class Event:
    """One event of the session."""

    name: str
    body: Body


def adapter_command(log_dir: Path | None = None) -> list[str]:
    """The command of our own adapter, run by the interpreter that runs us."""
    # -P: a `queue.py` or `random.py` in the user's working directory must not shadow ours.
    safe_path = ["-P"] if sys.version_info >= (3, 11) else []
    logs = ["--log-dir", str(log_dir)] if log_dir is not None else []
    return [sys.executable, *safe_path, "-m", "tensorpoint", "dap", *logs]


class DapClient:
    """One session of an adapter. Used from one event loop only."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        process: asyncio.subprocess.Process | None = None,
        reverse: Mapping[str, ReverseHandler] | None = None,
    ) -> None:
        self.events: asyncio.Queue[Event | None] = asyncio.Queue()
        """Events not consumed yet; None once, when the connection has ended."""
        self.capabilities: Body = {}
        """What `initialize` answered, with what `capabilities` events changed since."""
        self.transcript: list[Body] = []
        """Every message of both sides, in order, where `keep_transcript` was asked for."""
        self.keep_transcript = False
        self.failure: str | None = None
        """Why the connection ended, where it did not end between two messages."""
        self.process = process
        self._stderr = ""
        self._reader = reader
        self._writer = writer
        self._reverse = dict(reverse or {})
        self._seq = 0
        self._pending: dict[int, asyncio.Future[Body]] = {}
        self._gone = False
        self._skipped: list[Event] = []
        self._answering: set[asyncio.Task[None]] = set()
        self._pumps = [asyncio.create_task(self._pump())]
        if process is not None and process.stderr is not None:
            self._pumps.append(asyncio.create_task(self._pump_stderr(process.stderr)))

    @classmethod
    async def spawn(
        cls,
        command: Sequence[str] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        reverse: Mapping[str, ReverseHandler] | None = None,
    ) -> DapClient:
        """Start an adapter, ours by default, and speak to it over its pipes.

        It gets a session of its own, so that no signal of our terminal reaches it.
        """
        process = await asyncio.create_subprocess_exec(
            *(command if command is not None else adapter_command()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env,
            cwd=cwd,
            start_new_session=sys.platform != "win32",
        )
        assert process.stdout is not None and process.stdin is not None
        return cls(process.stdout, process.stdin, process=process, reverse=reverse)

    @classmethod
    async def connect(
        cls, host: str, port: int, *, reverse: Mapping[str, ReverseHandler] | None = None
    ) -> DapClient:
        """Open one more session of an adapter that listens."""
        reader, writer = await asyncio.open_connection(host, port)
        return cls(reader, writer, reverse=reverse)

    def send(self, command: str, arguments: Body | None = None) -> asyncio.Future[Body]:
        """Send a request at once; the future holds the body of its answer."""
        self._seq += 1
        seq = self._seq
        answer: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        if self._gone:
            answer.set_exception(self._gone_error())
            return answer
        self._pending[seq] = answer
        message: Body = {"seq": seq, "type": "request", "command": command}
        if arguments is not None:
            message["arguments"] = arguments
        self._write(message)
        return answer

    async def request(
        self, command: str, arguments: Body | None = None, *, timeout: float | None = None
    ) -> Body:
        """The body of the answer; raises `AdapterError`, `AdapterGone` or `TimeoutError`."""
        answer = self.send(command, arguments)
        try:
            return await asyncio.wait_for(answer, timeout)
        except asyncio.TimeoutError:
            raise TimeoutError(f"no answer to {command!r} within {timeout} s") from None

    async def start(self, command: str, arguments: Body) -> asyncio.Future[Body] | None:
        """Send `launch` or `attach` and wait until the process can be configured.

        The future holds the answer, which comes after `configurationDone`. None if the process
        ended before that; raises what a request raises.
        """
        answer = self.send(command, arguments)
        initialized = asyncio.create_task(self.wait_for_event("initialized"))
        try:
            await asyncio.wait({answer, initialized}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                await initialized
                return answer
        finally:
            initialized.cancel()
            await asyncio.gather(initialized, return_exceptions=True)
        await answer
        return None

    async def next_event(self, *, timeout: float | None = None) -> Event | None:
        """The next event in order of arrival, or None once the connection has ended."""
        if self._skipped:
            return self._skipped.pop(0)
        return await self._next_new_event(timeout)

    async def wait_for_event(
        self,
        name: str,
        matching: Callable[[Body], bool] = lambda _: True,
        *,
        timeout: float | None = None,
    ) -> Body:
        """The body of the first such event not consumed yet. Others stay for later."""
        for i, event in enumerate(self._skipped):
            if event.name == name and matching(event.body):
                return self._skipped.pop(i).body
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - loop.time())
            event = await self._next_new_event(left, awaited=name)
            if event is None:
                raise self._gone_error(f"while the event {name!r} was awaited")
            if event.name == name and matching(event.body):
                return event.body
            self._skipped.append(event)

    def take_events(self) -> list[Event]:
        """The events that have arrived and were not consumed, without waiting."""
        events, self._skipped = self._skipped, []
        while not self.events.empty():
            event = self.events.get_nowait()
            if event is None:
                self.events.put_nowait(None)
                break
            events.append(event)
        return events

    @property
    def gone(self) -> bool:
        """Whether the connection has ended."""
        return self._gone

    def stderr_text(self) -> str:
        """The end of what the adapter process wrote on its standard error."""
        return self._stderr

    async def close(self, *, grace: float = 5.0) -> None:
        """End the connection; an adapter process of ours has `grace` seconds to leave."""
        self._writer.close()
        process = self.process
        if process is not None:
            try:
                await asyncio.wait_for(process.wait(), grace)
            except asyncio.TimeoutError:
                self.kill()
                await process.wait()
        for task in self._answering:
            task.cancel()
        # After the process has left, its last words are still in the pipes.
        _, late = await asyncio.wait(self._pumps, timeout=1.0)
        for task in late:
            task.cancel()
        await asyncio.gather(*self._pumps, *self._answering, return_exceptions=True)
        with contextlib.suppress(Exception):
            await self._writer.wait_closed()

    def kill(self) -> None:
        """End the adapter process and everything else in its session, at once."""
        process = self.process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)

    async def _next_new_event(
        self, timeout: float | None, awaited: str | None = None
    ) -> Event | None:
        try:
            event = await asyncio.wait_for(self.events.get(), timeout)
        except asyncio.TimeoutError:
            what = "event" if awaited is None else f"event {awaited!r}"
            raise TimeoutError(f"no {what} within the time given") from None
        if event is None:
            self.events.put_nowait(None)
        return event

    async def _pump(self) -> None:
        """Read until the stream ends: the only reader of the connection."""
        try:
            while (message := await read_message(self._reader)) is not None:
                if self.keep_transcript:
                    self.transcript.append(message)
                self._dispatch(message)
        except (FramingError, OSError) as error:
            self.failure = str(error)
        finally:
            self._gone = True
            for answer in self._pending.values():
                if not answer.done():
                    answer.set_exception(self._gone_error())
                    answer.exception()  # as in _settle
            self._pending.clear()
            self.events.put_nowait(None)

    async def _pump_stderr(self, stderr: asyncio.StreamReader) -> None:
        while chunk := await stderr.read(4096):
            self._stderr = (self._stderr + chunk.decode(errors="replace"))[-_STDERR_CHARS:]

    def _dispatch(self, message: Body) -> None:
        kind = message.get("type")
        if kind == "response":
            self._settle(message)
        elif kind == "event":
            event = Event(message.get("event", ""), message.get("body") or {})
            if event.name == "capabilities":
                self.capabilities.update(event.body.get("capabilities") or {})
            self.events.put_nowait(event)
        elif kind == "request":
            task = asyncio.create_task(self._answer(message))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    def _settle(self, message: Body) -> None:
        answer = self._pending.pop(message.get("request_seq", -1), None)
        if answer is None or answer.done():
            return
        body: Body = message.get("body") or {}
        if message.get("success"):
            if message.get("command") == "initialize":
                self.capabilities = {**body, **self.capabilities}
            answer.set_result(body)
        else:
            answer.set_exception(
                AdapterError(message.get("command", ""), _error_text(message, body), body)
            )
            answer.exception()  # not worth a warning where nobody awaits it any more

    async def _answer(self, message: Body) -> None:
        command: str = message.get("command", "")
        response: Body = {
            "type": "response",
            "request_seq": message.get("seq"),
            "command": command,
            "success": True,
        }
        handler = self._reverse.get(command)
        if handler is None:
            response.update(success=False, message=f"this client does not handle {command!r}")
        else:
            try:
                response["body"] = await handler(message.get("arguments") or {})
            except Exception as error:
                response.update(success=False, message=f"{type(error).__name__}: {error}")
        self._seq += 1
        self._write({"seq": self._seq, **response})

    def _write(self, message: Body) -> None:
        if self.keep_transcript:
            self.transcript.append(message)
        if not self._writer.is_closing():
            self._writer.write(encode_message(message))

    def _gone_error(self, when: str = "") -> AdapterGone:
        parts = ["the debug adapter ended the connection", when]
        if self.failure:
            parts.append(f"({self.failure})")
        return AdapterGone(" ".join(part for part in parts if part))


def _error_text(message: Body, body: Body) -> str:
    """What a failed response says: debugpy puts it in `message`, the protocol also in `error`."""
    error: Body = body.get("error") or {}
    return error.get("format") or message.get("message") or "the request failed without a reason"
