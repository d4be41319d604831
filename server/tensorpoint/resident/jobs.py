"""Short requests to an interpreter that has torch: a function is called in a fork of the zygote.

A language server asks this way: its own process stays light, the function runs where torch is
imported already, and whatever it does there is gone afterwards. Without a zygote the same runs in a
process of its own. Cancelling the task that awaits an answer ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from ..wire.codec import convert
from .client import Client, NoHost
from .messages import Answer, Environment

T = TypeVar("T")
_JOB = str(Path(__file__).parent / "forking" / "job.py")
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Job:
    """A function of the environment's, called with `payload` (JSON), and what it may take."""

    #: `package.module:function`.
    function: str
    payload: Any
    #: Folders to look for the module in, before the installed packages.
    path: tuple[str, ...] = ()
    seconds: float = 10.0
    #: Beyond what a process has before; 0 for no limit.
    memory_mib: int = 2048
    answer_bytes: int = 16 << 20


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What came of a job: a value, or why there is none."""

    value: T | None
    error: str = ""
    traceback: str = ""
    seconds: float = 0.0
    #: Whether it ran in a fork of a zygote.
    forked: bool = False
    #: Why not, where it will be so the next time, too.
    note: str = ""


#: The job's standard input, output and error.
_Files = tuple[int, int, int]


class _Limit(Exception):
    """A limit was passed; the text says which."""


class _NotForked(Exception):
    """The zygote has gone since the host named it, or forks no more: nothing has run."""


async def run_job(
    environment: Environment,
    job: Job,
    kind: type[T],
    reply: Callable[[Any], Any] | None = None,
) -> Outcome[T]:
    """Run a job; its answer has to be a `kind`. Failures of it are outcomes, not exceptions.

    The variables of `environment` have to be those that this process was started with. With `reply`
    the function has a second argument, by which it asks: `reply` gets the question as JSON has it,
    on a thread, and returns what goes back. If it raises, the job ends and this raises the same.
    """
    began = time.monotonic()
    client: Client | None = None
    answer: Answer | None = None
    note = ""
    with contextlib.suppress(NoHost):
        client = Client()
        found = await asyncio.to_thread(client.acquire, environment)
        answer = found if found.state == "ready" else None
        note = found.note if found.state == "unavailable" else ""
    forked = answer is not None
    value: T | None = None
    error = traceback = ""
    try:
        try:
            text = await asyncio.wait_for(_carry_out(environment, job, answer, reply), job.seconds)
        except _NotForked:
            forked = False
            text = await asyncio.wait_for(_carry_out(environment, job, None, reply), job.seconds)
        fields: dict[str, Any] = json.loads(text)
        error, traceback = fields.get("error", ""), fields.get("traceback", "")
        if client is not None and fields.get("imported"):
            with contextlib.suppress(NoHost):  # the next fork has it
                await asyncio.to_thread(client.learn, environment, fields["imported"])
        if not error:
            value = convert(fields["value"], kind)
    except asyncio.TimeoutError:
        error = f"not within {job.seconds:g} s"
    except (_Limit, OSError) as failure:
        error = str(failure)
    except msgspec.ValidationError as failure:  # before ValueError, which it is one of
        error = f"an answer of another kind: {failure}"
    except ValueError:
        error = "it ended without an answer"
    return Outcome(value, error, traceback, time.monotonic() - began, forked, note)


async def _carry_out(
    environment: Environment,
    job: Job,
    answer: Answer | None,
    reply: Callable[[Any], Any] | None,
) -> bytes:
    """The bytes that the job writes last. Raises `_NotForked`, if `answer` says where to fork."""
    interpreter, *options = environment.python
    asks = ["--asks"] if reply is not None else []
    argv = [*options, _JOB, *asks, job.function, str(job.memory_mib), *job.path]
    with _pipe() as (payload_in, payload_out), _pipe() as (text_in, text_out):
        files = (payload_in.fileno(), text_out.fileno(), 2)
        if answer is not None:
            process: _Fork | _Fresh = _Fork(answer, argv, files)
        else:
            process = _Fresh([interpreter, *argv], environment.variables, files)
        payload_in.close()
        text_out.close()
        try:
            loop = asyncio.get_running_loop()
            for end in (payload_out, text_in):
                end.setblocking(False)
            sending = asyncio.ensure_future(_send(loop, payload_out, job.payload))
            text = b""
            try:
                async for text in _lines(loop, text_in, job.answer_bytes):
                    question = None if reply is None else _question(text)
                    if reply is None or question is None:
                        break
                    await sending
                    told = await asyncio.to_thread(reply, question[0])
                    sending = asyncio.ensure_future(_send(loop, payload_out, told))
            finally:  # before the pipe is closed, which the loop would not hear of
                sending.cancel()
                await asyncio.wait({sending})
            if not text and isinstance(process, _Fork):
                await process.check_forked(loop)
            return text
        finally:
            process.end()


async def _send(loop: asyncio.AbstractEventLoop, end: socket.socket, value: Any) -> None:
    with contextlib.suppress(ConnectionError):  # it ended without having read it
        await loop.sock_sendall(end, json.dumps(value).encode() + b"\n")


async def _lines(
    loop: asyncio.AbstractEventLoop, end: socket.socket, most: int
) -> AsyncGenerator[bytes]:
    """Each line, and what is behind the last at the end; `most` bytes in all."""
    text, size = bytearray(), 0
    while data := await loop.sock_recv(end, _CHUNK):
        size += len(data)
        if size > most:
            raise _Limit(f"an answer of more than {most} bytes")
        *lines, rest = data.split(b"\n")
        for line in lines:
            yield bytes(text + line)
            text.clear()
        text += rest
    yield bytes(text)


def _question(line: bytes) -> tuple[Any] | None:
    """What `job.py` asks; None of its answer, which may be long and is read once, at the end."""
    return (json.loads(line)["question"],) if line.startswith(b'{"question": ') else None


@contextlib.contextmanager
def _pipe() -> Generator[tuple[socket.socket, socket.socket]]:
    """Two ends that are closed at the end: sockets, since asyncio waits for those by itself."""
    ends = socket.socketpair()
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


class _Fork:
    """A process from a zygote; we stand in the place of its stub."""

    def __init__(self, answer: Answer, argv: list[str], files: _Files) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        body = repr({"token": answer.token, "argv": tuple(argv), "files": (0, 1, 2)}).encode()
        data = b"%d\n%s" % (len(body), body)
        try:
            self._connection.connect(answer.socket)
            sent = socket.send_fds(self._connection, [data], files)
            self._connection.sendall(data[sent:])
        except OSError as error:
            self._connection.close()
            raise _NotForked from error

    async def check_forked(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raise `_NotForked` unless the zygote names a process, which has ended by now."""
        self._connection.setblocking(False)
        with contextlib.suppress(ConnectionError):
            if (await loop.sock_recv(self._connection, 4096)).startswith(b"pid "):
                return
        raise _NotForked

    def end(self) -> None:
        """What has not ended by itself is killed: its stub has gone."""
        self._connection.close()


class _Fresh:
    """A process of its own."""

    def __init__(self, command: list[str], variables: dict[str, str], files: _Files) -> None:
        stdin, stdout, stderr = files
        self._process = subprocess.Popen(
            command,
            env=variables,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
