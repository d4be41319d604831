"""A scripted DAP client over the real adapter: tests read as a script of what is expected.

    with Session() as session:
        session.launch(program, filters=["nonfinite"])
        stopped = session.expect("stopped")
        assert session.frames(stopped)[0]["line"] == 14
        session.resume()
        assert session.exit_code() == 0

Every wait has a deadline, and a failure shows the transcript.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from tests.protocol.processes import forks, processes_with
from tests.protocol.wire import Message, Wire

SERVER = Path(__file__).resolve().parents[2] / "server"
#: A folder of this name on the path is library code to debugpy, as torch's own is.
STUB = Path(__file__).resolve().parent / "stub" / "site-packages"
DEADLINE = 120.0
#: What VS Code says of itself, in short.
VSCODE = {
    "clientID": "vscode",
    "adapterID": "tensorpoint",
    "pathFormat": "path",
    "linesStartAt1": True,
    "columnsStartAt1": True,
    "supportsVariableType": True,
    "supportsRunInTerminalRequest": True,
    "supportsStartDebuggingRequest": True,
}
#: A client that advertises nothing; some of those answer reverse requests all the same.
PLAIN = {"clientID": "plain", "adapterID": "tensorpoint"}
#: Launch arguments for a program that imports the stub in place of torch: nothing of ours is on
#: its path.
STUBBED: Message = {"env": {"PYTHONPATH": str(STUB), "PYTHONDONTWRITEBYTECODE": "1"}}
#: Names the environment variable by which a session's processes are found.
_MARK = "TENSORPOINT_TEST_SESSION"


def adapter_environment() -> dict[str, str]:
    """The environment for `python -m tensorpoint`: the package from this checkout."""
    return {**os.environ, "PYTHONPATH": str(SERVER)}


def free_port() -> int:
    """A port on the loopback that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def eventually(holds: Callable[[], object], what: str, timeout: float = DEADLINE) -> None:
    """Wait until `holds` returns something true."""
    end = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < end, f"not within {timeout:.0f} s: {what}"
        time.sleep(0.05)


class Session:
    """One client session; starts `tensorpoint dap` over stdio unless given an address."""

    def __init__(
        self,
        address: tuple[str, int] | None = None,
        client: Message | None = None,
        adapter: list[str] | None = None,
        handles: Collection[str] = ("runInTerminal", "startDebugging"),
        cwd: str | Path | None = None,
    ) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._is_debugpys = adapter is not None and "debugpy.adapter" in adapter
        self._socket: socket.socket | None = None
        self._mark = uuid.uuid4().hex
        self._forks_before = frozenset(forks())
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        if address is None:
            self.process = subprocess.Popen(
                adapter or [sys.executable, "-m", "tensorpoint", "dap"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env={**adapter_environment(), _MARK: self._mark},
                cwd=cwd,
            )
            assert self.process.stdin is not None and self.process.stdout is not None
            self.wire = Wire(self.process.stdout, self.process.stdin)  # type: ignore[arg-type]
        else:
            self._socket = socket.create_connection(address, timeout=DEADLINE)
            self._socket.settimeout(None)
            stream = self._socket.makefile("rwb")
            self.wire = Wire(stream, stream)  # type: ignore[arg-type]
        self._client = client if client is not None else VSCODE
        self._handles = frozenset(handles)
        self._ignored: set[str] = set()
        self._messages: list[tuple[str, Message]] = []
        self.terminals: list[subprocess.Popen[bytes]] = []
        self._numbers = itertools.count(1)
        self.transcript: list[str] = []
        self._events: list[Message] = []
        self._seen = 0
        self._responses: dict[int, Message] = {}
        #: The name of the configuration that it was started with.
        self.name = ""
        self._arrived = threading.Condition()
        self.closed = False
        self._reading = True
        self.children: queue.Queue[Message] = queue.Queue()
        self.capabilities: Message = {}
        self._start: int | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session whatever state it is in; kills what does not end."""
        if not self.closed:
            with contextlib.suppress(Exception):
                self.send("disconnect", terminateDebuggee=True)
                if not self._is_debugpys:  # debugpy's waits for us to close our side
                    self.wait_closed()
        with contextlib.suppress(OSError, ValueError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
                self._socket.close()
            else:
                self.wire.sink.close()
        if self.process is not None:
            try:
                self.process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise AssertionError(f"the adapter did not end\n{self.story()}") from None
        for terminal in self.terminals:
            terminal.kill()
            terminal.wait()
        self._stderr.close()

    def processes(self) -> dict[int, str]:
        """Command lines of all living processes of this session, the adapter's included."""
        mine = {pid: what for pid, what in forks().items() if pid not in self._forks_before}
        return {**mine, **processes_with(_MARK, self._mark)}

    def expect_no_process(self, timeout: float = DEADLINE) -> None:
        """Wait until nothing of this session runs any more."""
        end = time.monotonic() + timeout
        while self.processes():
            rest = f"still running: {self.processes()}\n{self.story()}"
            assert time.monotonic() < end, rest
            time.sleep(0.05)

    def stderr(self) -> str:
        """What the adapter has written on its standard error."""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")

    # Messages ----------------------------------------------------------------------------------

    def _read(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            while self._reading and (message := self.wire.read()) is not None:
                with self._arrived:
                    self._note("<-", message)
                    if message["type"] == "response":
                        self._responses[message["request_seq"]] = message
                    elif message["type"] == "event":
                        self._events.append(message)
                        if message["event"] == "debugpyAttach":
                            self.children.put(message["body"])
                    else:
                        self._answer(message)
                    self._arrived.notify_all()
        with self._arrived:
            self.closed = True
            self._arrived.notify_all()

    def _answer(self, request: Message) -> None:
        body: Message = {}
        command, arguments = request["command"], request.get("arguments") or {}
        if command in self._ignored:
            return
        success = command in self._handles
        if success and command == "runInTerminal":
            terminal = self._terminal(arguments)
            success = terminal is not None
            body = {"processId": terminal.pid} if terminal is not None else {}
        elif success and command == "startDebugging":
            self.children.put(arguments["configuration"])
        self._write(
            {
                "type": "response",
                "request_seq": request["seq"],
                "command": command,
                "success": success,
                "body": body,
            }
        )

    def _terminal(self, arguments: Message) -> subprocess.Popen[bytes] | None:
        try:
            terminal = subprocess.Popen(
                arguments["args"],
                cwd=arguments.get("cwd") or None,
                env={**os.environ, _MARK: self._mark, **(arguments.get("env") or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            return None
        self.terminals.append(terminal)
        return terminal

    def _note(self, arrow: str, message: Message) -> None:
        self._messages.append((arrow, message))
        self.transcript.append(f"{arrow} {json.dumps(message)[:400]}")

    def _write(self, message: Message) -> int:
        number = next(self._numbers)
        message = {**message, "seq": number}
        self._note("->", message)
        self.wire.write(message)
        return number

    def story(self) -> str:
        """The transcript so far, for failures."""
        return "transcript:\n" + "\n".join(self.transcript[-60:]) + f"\n{self.stderr()[-3000:]}"

    def send(self, command: str, /, **arguments: Any) -> int:
        """Send a request without waiting; returns its number."""
        return self._write({"type": "request", "command": command, "arguments": arguments})

    def send_raw(self, command: str, arguments: Any) -> int:
        """Send a request with arguments that need not be an object."""
        return self._write({"type": "request", "command": command, "arguments": arguments})

    def write_raw(self, data: bytes) -> None:
        """Send bytes that need not be a message."""
        self.transcript.append(f"-> {data[:100]!r}")
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            self.wire.sink.write(data)
            self.wire.sink.flush()

    def close_input(self) -> None:
        """Close our side of the stream, as an editor that dies."""
        self.transcript.append("-> (closed)")
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            self.wire.sink.close()

    def never_answer(self, command: str) -> None:
        """Leave reverse requests of this kind unanswered."""
        self._ignored.add(command)

    def stop_reading(self) -> None:
        """Leave what the adapter sends from now on where it is."""
        self._reading = False

    def exit_status(self, timeout: float = DEADLINE) -> int:
        """Wait for the adapter's own end."""
        assert self.process is not None
        return self.process.wait(timeout)

    def answer(self, number: int, timeout: float = DEADLINE) -> Message:
        """The response to a request, success or not."""
        self._until(lambda: number in self._responses, f"the answer to {number}", timeout)
        return self._responses[number]

    def request(self, command: str, /, **arguments: Any) -> Message:
        """Send a request; returns the body of its successful answer."""
        response = self.answer(self.send(command, **arguments))
        assert response["success"], f"{command} failed: {response}\n{self.story()}"
        return response.get("body") or {}

    def refused(self, command: str, /, **arguments: Any) -> str:
        """Send a request that must fail; returns the reason."""
        response = self.answer(self.send(command, **arguments))
        assert not response["success"], f"{command} succeeded: {response}\n{self.story()}"
        return response["message"]

    def _until(self, done: Any, what: str, timeout: float = DEADLINE) -> None:
        with self._arrived:
            end = time.monotonic() + timeout
            while not done():
                rest = end - time.monotonic()
                if rest <= 0 or self.closed:
                    why = "the adapter closed the stream" if self.closed else f"in {timeout:.0f} s"
                    raise AssertionError(f"did not get {what} ({why})\n{self.story()}")
                self._arrived.wait(rest)

    def expect(self, event: str, timeout: float = DEADLINE, **fields: Any) -> Message:
        """The next event of this name (whose body has these fields); earlier ones are passed."""

        def matches(message: Message) -> bool:
            body = message.get("body") or {}
            return message["event"] == event and all(body.get(k) == v for k, v in fields.items())

        def over() -> bool:
            return event == "stopped" and any(map(_ends_hope, self._events))

        def found() -> int | None:
            return next(
                (i for i in range(self._seen, len(self._events)) if matches(self._events[i])), None
            )

        what = f"event {event} {fields or ''}"
        self._until(lambda: found() is not None or over(), what, timeout)
        position = found()
        assert position is not None, f"{what} won't come any more\n{self.story()}"
        self._seen = position + 1
        return self._events[position].get("body") or {}

    def seen(self, event: str) -> list[Message]:
        """Bodies of all events of this name so far."""
        with self._arrived:
            return [e.get("body") or {} for e in self._events if e["event"] == event]

    def messages(self) -> list[tuple[str, Message]]:
        """All messages so far, ours ("->") and the adapter's ("<-")."""
        with self._arrived:
            return list(self._messages)

    def events(self) -> list[Message]:
        """All events so far, in order."""
        with self._arrived:
            return list(self._events)

    def output(self, category: str | None = None) -> str:
        """All output so far, of one category or of all."""
        return "".join(
            body.get("output", "")
            for body in self.seen("output")
            if category in (None, body.get("category", "console"))
        )

    def wait_closed(self, timeout: float = DEADLINE) -> None:
        """Wait until the adapter has closed its side."""
        with self._arrived:
            end = time.monotonic() + timeout
            while not self.closed:
                rest = end - time.monotonic()
                assert rest > 0, f"the adapter keeps the stream open\n{self.story()}"
                self._arrived.wait(rest)

    # A session's usual steps -------------------------------------------------------------------

    def initialize(self) -> Message:
        self.capabilities = self.request("initialize", **self._client)
        return self.capabilities

    def start(self, command: str, **arguments: Any) -> None:
        """Initialize and send launch or attach, up to the `initialized` event."""
        if not self.capabilities:
            self.initialize()
        self.name = str(arguments.get("name", ""))
        self._start = self.send(command, **arguments)
        self._until(
            lambda: (
                any(e["event"] == "initialized" for e in self._events)
                or self._start in self._responses
            ),
            "initialized",
        )
        response = self._responses.get(self._start)
        assert response is None or response["success"], f"{response}\n{self.story()}"

    def configure(
        self,
        filters: list[str] | None = None,
        filter_options: list[Message] | None = None,
        functions: list[Message] | None = None,
        breakpoints: dict[str, list[int]] | None = None,
    ) -> Message:
        """Set breakpoints as VS Code does and finish the configuration."""
        for path, lines in (breakpoints or {}).items():
            self.request(
                "setBreakpoints",
                source={"path": path},
                breakpoints=[{"line": line} for line in lines],
            )
        if functions is not None:
            self.request("setFunctionBreakpoints", breakpoints=functions)
        answer = self.request(
            "setExceptionBreakpoints",
            filters=[] if filters is None else filters,
            filterOptions=filter_options or [],
        )
        self.request("configurationDone")
        assert self._start is not None
        response = self.answer(self._start)
        assert response["success"], f"{response}\n{self.story()}"
        return answer

    def configure_after(self, start: int, functions: list[Message] | None = None) -> None:
        """Finish the configuration of a launch or attach that was sent without `start`."""
        self._start = start
        self.configure(filters=["nonfinite"], functions=functions)

    def launch(
        self,
        program: str | Path | None = None,
        *,
        filters: list[str] | None = None,
        filter_options: list[Message] | None = None,
        functions: list[Message] | None = None,
        breakpoints: dict[str, list[int]] | None = None,
        **arguments: Any,
    ) -> Message:
        """Launch a program, with NaN/Inf on unless told otherwise; returns the filters' answer."""
        if program is not None:
            arguments["program"] = str(program)
        arguments.setdefault("console", "internalConsole")
        arguments.setdefault("python", [sys.executable])
        self.start("launch", **arguments)
        if filters is None and filter_options is None:
            filters = ["nonfinite"]
        return self.configure(filters, filter_options, functions, breakpoints)

    def stopped(self, timeout: float = DEADLINE) -> Message:
        """The next stop."""
        return self.expect("stopped", timeout)

    def frames(self, stopped: Message) -> list[Message]:
        """The thread's frames, without what is listed below them under a label."""
        frames = self.all_frames(stopped)
        labels = [n for n, item in enumerate(frames) if item.get("presentationHint") == "label"]
        return frames[: labels[0]] if labels else frames

    def all_frames(self, stopped: Message) -> list[Message]:
        return self.request("stackTrace", threadId=stopped["threadId"])["stackFrames"]

    def top(self, stopped: Message) -> tuple[str, int]:
        """(file name, line) of the top frame."""
        frame = self.frames(stopped)[0]
        return os.path.basename(frame["source"]["path"]), frame["line"]

    def places(self, stopped: Message) -> list[tuple[str, int]]:
        """(file name, line) of each frame that is listed."""
        return [
            (os.path.basename(frame["source"]["path"]), frame["line"])
            for frame in self.frames(stopped)
        ]

    def scopes(self, stopped: Message) -> dict[str, int]:
        """Names and references of the top frame's scopes."""
        frame = self.frames(stopped)[0]["id"]
        scopes = self.request("scopes", frameId=frame)["scopes"]
        return {scope["name"]: scope["variablesReference"] for scope in scopes}

    def evaluate(self, expression: str, stopped: Message, context: str = "repl") -> str:
        frame = self.frames(stopped)[0]["id"]
        return self.request("evaluate", expression=expression, frameId=frame, context=context)[
            "result"
        ]

    def console(self, line: str) -> str:
        """A line in the debug console, with no frame."""
        return self.request("evaluate", expression=line, context="repl")["result"]

    def resume(self, stopped: Message | None = None) -> None:
        self.request("continue", threadId=(stopped or {}).get("threadId", 1))

    def step(self, command: str, stopped: Message) -> Message:
        """next, stepIn or stepOut; returns the stop after it."""
        self.request(command, threadId=stopped["threadId"])
        return self.stopped()

    def exit_code(self) -> int:
        """Wait for the program's end."""
        return self.expect("exited")["exitCode"]

    def following_children(
        self, **configure: Any
    ) -> contextlib.AbstractContextManager[list[Session]]:
        """Within this, children are attached to as they come; they are in the list."""
        return _following(self, configure)

    def expect_process(self) -> int:
        """The pid of the debugged program."""
        eventually(lambda: self.seen("process"), "the process event")
        return self.seen("process")[0]["systemProcessId"]

    def child(
        self,
        timeout: float = DEADLINE,
        through: list[str] | tuple[str, int] | None = None,
        **configure: Any,
    ) -> Session:
        """The session for the next child process, attached and configured.

        Over the address in the configuration, or by an adapter that is told of it: `through` is
        the command of one, or the address of one that listens.
        """
        try:
            configuration = self.children.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"no child came in {timeout:.0f} s\n{self.story()}") from None
        connect = configuration["connect"]
        address = (connect["host"], connect["port"]) if through is None else None
        if isinstance(through, tuple):
            address, through = through, None
        session = Session(address, self._client, adapter=through, handles=self._handles)
        session.start("attach", **configuration)
        configure.setdefault("filters", ["nonfinite"])
        session.configure(**configure)
        return session


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`tensorpoint dap --listen` and the port that it says."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorpoint", "dap", *(arguments or ("--listen", "127.0.0.1:0"))],
        env=adapter_environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        assert "listening on " in line, line
        yield process, int(line.rpartition(":")[2])
    finally:
        process.terminate()
        process.wait(DEADLINE)
        process.stderr.close()


@contextlib.contextmanager
def _following(session: Session, configure: Message) -> Iterator[list[Session]]:
    """Attach to every child process as it comes, as an editor does; children wait for that."""
    children: list[Session] = []
    over = threading.Event()

    def follow() -> None:
        while not over.wait(0.1):
            for parent in (session, *children):
                while not parent.children.empty():
                    children.append(parent.child(**configure))

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield children
    finally:
        over.set()
        follower.join()
        for child in children:
            child.close()


def _ends_hope(event: Message) -> bool:
    """Whether no stop comes after this event: the program has ended, or has no agent."""
    output: str = (event.get("body") or {}).get("output", "")
    no_agent = "Tensorpoint: the agent could not", "Tensorpoint: a fault while arming"
    return event["event"] == "terminated" or output.startswith(no_agent)


def line_of(program: str | Path, text: str) -> int:
    """The number of the only line of a file that contains `text`."""
    lines = Path(program).read_text(encoding="utf-8").splitlines()
    found = [number for number, line in enumerate(lines, 1) if text in line]
    assert len(found) == 1, f"{text!r} is in lines {found} of {program}"
    return found[0]
