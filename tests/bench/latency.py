"""How long an editor waits: the same requests through `tensorpoint dap` and through debugpy.

The sessions are stopped in the same program, with NaN/Inf armed in ours, and take turns. Stock
debugpy waits 40 ms in each answer for a TCP acknowledgement, which the agent switches off; a third
session has only that switched off, so that what the proxy itself costs can be seen.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.bench.rounds import rounds, taking_turns
from tests.bench.spread import quantile
from tests.protocol.dap import Message, Session, line_of

STOCK_ADAPTER = [sys.executable, "-m", "debugpy.adapter"]
TARGET_P50_MS = 8.0

_PROGRAM = Path(__file__).with_name("stepped.py")
_WARM_UP = 4
_NO_DELAY = (
    "__import__('pydevd').get_global_debugger().writer.sock"
    f".setsockopt({socket.IPPROTO_TCP}, {socket.TCP_NODELAY}, 1)"
)


@dataclass(frozen=True)
class Percentiles:
    """In milliseconds."""

    p50: float
    p90: float


@dataclass(frozen=True)
class Latency:
    """Milliseconds until the answer to one thing an editor does."""

    what: str
    ours: Percentiles
    stock: Percentiles
    stock_no_delay: Percentiles
    rounds: int

    @property
    def ratio(self) -> float:
        return self.ours.p50 / self.stock.p50

    @property
    def ratio_no_delay(self) -> float:
        return self.ours.p50 / self.stock_no_delay.p50

    @property
    def met(self) -> bool:
        return self.ours.p50 <= TARGET_P50_MS


def hang_up(session: Session) -> None:
    """Close a session. Stock debugpy waits for our end of it, for which `close` waits in vain."""
    with contextlib.suppress(Exception):
        session.request("disconnect", terminateDebuggee=True)
        session.wire.sink.close()
        session.wait_closed()
    session.close()


class _Editor:
    """One session that is stopped in the program, and what it does there."""

    def __init__(
        self, sessions: contextlib.ExitStack, adapter: list[str] | None, filters: list[str]
    ) -> None:
        self.session = Session(adapter=adapter)
        sessions.callback(hang_up, self.session)
        self.session.launch(
            _PROGRAM,
            filters=list(filters),
            breakpoints={str(_PROGRAM): [line_of(_PROGRAM, "stop here")]},
        )
        self._stop: Message = self.session.stopped()
        self._frame = self.session.frames(self._stop)[0]["id"]
        # With the breakpoint gone, what is measured is stepping alone.
        self.session.request("setBreakpoints", source={"path": str(_PROGRAM)}, breakpoints=[])
        self.milliseconds: dict[str, list[float]] = {}

    def take_turn(self, counts: bool) -> None:
        """Do each thing once, in an editor's order."""
        for what, act in _THINGS.items():
            began = time.perf_counter()
            act(self)
            if counts:
                passed = (time.perf_counter() - began) * 1e3
                self.milliseconds.setdefault(what, []).append(passed)

    def step(self) -> None:
        self._stop = self.session.step("next", self._stop)

    def look(self) -> None:
        frames = self.session.frames(self._stop)
        self._frame = frames[0]["id"]
        scopes = self.session.request("scopes", frameId=self._frame)["scopes"]
        local = next(scope for scope in scopes if scope["name"] == "Locals")
        self.session.request("variables", variablesReference=local["variablesReference"])

    def evaluate(self, expression: str = "len(losses)") -> None:
        self.session.request(
            "evaluate", expression=expression, frameId=self._frame, context="watch"
        )


_THINGS: dict[str, Callable[[_Editor], None]] = {
    "step → stopped": _Editor.step,
    "stackTrace + scopes + variables": _Editor.look,
    "evaluate": _Editor.evaluate,
}


def measure(seconds: float, least: int, most: int) -> list[Latency]:
    """Measure all adapters for about `seconds`."""
    with contextlib.ExitStack() as sessions:
        with ThreadPoolExecutor() as pool:  # most of a start is importing torch
            started = pool.map(
                lambda arguments: _Editor(sessions, *arguments),
                ((None, ["nonfinite"]), (STOCK_ADAPTER, []), (STOCK_ADAPTER, [])),
            )
        ours, stock, no_delay = editors = tuple(started)
        no_delay.evaluate(_NO_DELAY)
        for number in range(_WARM_UP):
            for editor in taking_turns(editors, number):
                editor.take_turn(counts=False)
        for number in rounds(seconds, least, most):
            for editor in taking_turns(editors, number):
                editor.take_turn(counts=True)
    return [
        Latency(
            what=what,
            ours=_percentiles(ours.milliseconds[what]),
            stock=_percentiles(stock.milliseconds[what]),
            stock_no_delay=_percentiles(no_delay.milliseconds[what]),
            rounds=len(ours.milliseconds[what]),
        )
        for what in _THINGS
    ]


def _percentiles(milliseconds: list[float]) -> Percentiles:
    return Percentiles(quantile(milliseconds, 0.5), quantile(milliseconds, 0.9))
