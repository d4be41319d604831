"""How long an editor waits: the same requests through `tensorpoint dap` and through debugpy.

Both sessions are stopped in the same program, with NaN/Inf armed in ours, and take turns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.bench.rounds import rounds, taking_turns
from tests.bench.spread import quantile
from tests.protocol.dap import Message, Session, line_of

STOCK_ADAPTER = [sys.executable, "-m", "debugpy.adapter"]
TARGET_P50_MS = 8.0

_PROGRAM = Path(__file__).with_name("stepped.py")
_WARM_UP = 4


@dataclass(frozen=True)
class Latency:
    """Milliseconds until the answer to one thing an editor does; `ratio` is of the p50."""

    what: str
    ratio: float
    ours_p50: float
    ours_p90: float
    stock_p50: float
    stock_p90: float
    rounds: int

    @property
    def met(self) -> bool:
        return self.ours_p50 <= TARGET_P50_MS


class _Editor:
    """One session that is stopped in the program, and what it does there."""

    def __init__(self, adapter: list[str] | None, filters: list[str]) -> None:
        self.session = Session(adapter=adapter)
        self.session.launch(
            _PROGRAM, filters=filters, breakpoints={str(_PROGRAM): [line_of(_PROGRAM, "stop here")]}
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

    def evaluate(self) -> None:
        self.session.request(
            "evaluate", expression="len(losses)", frameId=self._frame, context="watch"
        )


_THINGS: dict[str, Callable[[_Editor], None]] = {
    "step → stopped": _Editor.step,
    "stackTrace + scopes + variables": _Editor.look,
    "evaluate": _Editor.evaluate,
}


def measure(seconds: float, least: int, most: int) -> list[Latency]:
    """Measure both adapters for about `seconds`."""
    ours = _Editor(None, ["nonfinite"])
    try:
        stock = _Editor(STOCK_ADAPTER, [])
        try:
            for number in range(_WARM_UP):
                for editor in taking_turns((ours, stock), number):
                    editor.take_turn(counts=False)
            for number in rounds(seconds, least, most):
                for editor in taking_turns((ours, stock), number):
                    editor.take_turn(counts=True)
        finally:
            stock.session.close()
    finally:
        ours.session.close()
    return [_row(what, ours.milliseconds[what], stock.milliseconds[what]) for what in _THINGS]


def _row(what: str, ours: list[float], stock: list[float]) -> Latency:
    p50, stock_p50 = quantile(ours, 0.5), quantile(stock, 0.5)
    return Latency(
        what=what,
        ratio=p50 / stock_p50,
        ours_p50=p50,
        ours_p90=quantile(ours, 0.9),
        stock_p50=stock_p50,
        stock_p90=quantile(stock, 0.9),
        rounds=len(ours),
    )
