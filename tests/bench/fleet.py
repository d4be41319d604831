"""The processes that are measured: one worker per debugger, started together, run in turn."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.latency import STOCK_ADAPTER, hang_up
from tests.protocol.dap import Session, adapter_environment

ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 180.0
_STEP_SECONDS = 120.0


@dataclass(frozen=True)
class Sample:
    """CPU nanoseconds of a step; and of the hooks in it and torch's plumbing, where accounted."""

    step: float
    hooks: float = 0.0
    plumbing: float = 0.0
    runs: int = 0

    @property
    def share(self) -> float:
        """The part of the step that went into hooks, counting what torch does to run them."""
        return (self.hooks + self.plumbing) / self.step


class Worker:
    """One process that trains a step when told to, without a debugger."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(1)
        self._start(str(self._listener.getsockname()[1]))

    def _start(self, port: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.worker", port],
            cwd=ROOT,
            env=adapter_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def wait(self) -> None:
        """Wait until it can take its first step."""
        connection = self._accept()
        connection.settimeout(_STEP_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = connection.makefile("rw", encoding="utf-8")
        connection.close()  # the stream keeps it open
        self.modules: dict[str, int] = self._read()["modules"]

    def _accept(self) -> socket.socket:
        end = time.monotonic() + _START_SECONDS
        while not self.has_ended() and time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                return self._listener.accept()[0]
        raise RuntimeError(f"a process to measure did not start{self.messages()}")

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def messages(self) -> str:
        """What it printed, where that is not on our own standard error already."""
        return "; see its messages above"

    def run(self, model: str, watch: str, *, settle: bool, account: bool) -> Sample:
        """One training step of `model` with `watch` (of `watches`) on."""
        order = {"model": model, "watch": watch, "settle": settle, "account": account}
        self._stream.write(json.dumps(order) + "\n")
        self._stream.flush()
        return Sample(**self._read())

    def arm(self, conditions: tuple[str, ...]) -> None:
        """Set exactly these through the debugger; there is none here."""
        if conditions:
            raise ValueError("this worker has no debugger")

    def _read(self) -> Any:
        line = self._stream.readline()
        if not line:
            raise RuntimeError(f"a measured process ended early{self.messages()}")
        return json.loads(line)

    def close(self) -> None:
        """End the process, whatever state it is in."""
        self._listener.close()
        self._process.kill()
        self._process.wait()


class DebuggedWorker(Worker):
    """The same under a debugger: `adapter` None is ours. Nothing is armed at first."""

    def __init__(self, adapter: list[str] | None) -> None:
        self._adapter = adapter
        self._armed: tuple[str, ...] = ()
        super().__init__()

    def _start(self, port: str) -> None:
        self._session = Session(adapter=self._adapter)
        self._session.launch(
            module="tests.bench.worker",
            args=[port],
            cwd=str(ROOT),
            filters=[],
        )

    def arm(self, conditions: tuple[str, ...]) -> None:
        if conditions != self._armed:
            options = [{"filterId": "tensorpoint", "condition": text} for text in conditions]
            answer = self._session.request(
                "setExceptionBreakpoints", filters=[], filterOptions=options
            )
            assert all(item["verified"] for item in answer["breakpoints"]), answer
            self._armed = conditions

    def has_ended(self) -> bool:
        return bool(self._session.seen("terminated"))

    def messages(self) -> str:
        return ":\n" + self._session.output("stderr")

    def close(self) -> None:
        self._listener.close()
        hang_up(self._session)


class Fleet:
    """All workers, ready to run. Use it as a context."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []
        try:
            self.bare = self._add(Worker())
            self.stock = self._add(DebuggedWorker(STOCK_ADAPTER))
            self.stock_again = self._add(DebuggedWorker(STOCK_ADAPTER))
            self.ours = self._add(DebuggedWorker(None))
            for worker in self._workers:
                worker.wait()
        except BaseException:
            self.close()
            raise

    def _add(self, worker: Worker) -> Worker:
        self._workers.append(worker)
        return worker

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.close()
