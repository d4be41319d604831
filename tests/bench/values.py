"""How long an editor waits for values: `tensorpoint dap` beside debugpy's adapter, in one run.

Each case has a session of each, which take turns. Stock debugpy does not answer some of them: it is
given a few seconds, and the ratio is a lower bound then.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.bench.latency import STOCK_ADAPTER, hang_up
from tests.bench.rounds import rounds
from tests.bench.spread import quantile
from tests.protocol.dap import Message, Session, line_of

TARGET_MS = 50.0
_PROGRAM = Path(__file__).with_name("viewed.py")
_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True)
class Viewed:
    """Milliseconds until an answer; `stock` is None where there was none in time."""

    what: str
    ours: float
    stock: float | None
    rounds: int

    @property
    def ratio(self) -> float:
        return self.ours / (1e3 * _PATIENCE_SECONDS if self.stock is None else self.stock)

    @property
    def met(self) -> bool:
        return self.ours <= TARGET_MS


class _Editor:
    def __init__(self, adapter: list[str] | None, case: str) -> None:
        self.session = Session(adapter=adapter)
        line = line_of(_PROGRAM, f"# {case}")
        self.session.launch(
            _PROGRAM,
            filters=[],
            breakpoints={str(_PROGRAM): [line]},
            args=[case],
            console="internalConsole",
            python=[sys.executable],
        )
        stop = self.session.stopped()
        self.frame = self.session.frames(stop)[0]["id"]
        self.locals = self.session.scopes(stop)["Locals"]
        self._rows: dict[str, int] = {}

    def ask(self, command: str, **arguments: object) -> Message:
        """The body of the answer. Raises AssertionError if there is none in time."""
        number = self.session.send(command, **arguments)
        return self.session.answer(number, _PATIENCE_SECONDS)["body"]

    def variables(self) -> None:
        rows = self.ask("variables", variablesReference=self.locals)["variables"]
        self._rows = {row["name"]: row["variablesReference"] for row in rows}

    def expand(self, name: str) -> None:
        if name not in self._rows:
            self.variables()
        self.ask("variables", variablesReference=self._rows[name])

    def hover(self, expression: str) -> None:
        self.ask("evaluate", expression=expression, frameId=self.frame, context="hover")


#: What is done, in which function of the program.
_CASES: tuple[tuple[str, str, Callable[[_Editor], None]], ...] = (
    ("variables, 200 tensors of 10 MB", "many", _Editor.variables),
    ("variables, a model of 2,000 modules", "model", _Editor.variables),
    ("variables, a storage of 10 M elements", "storage", _Editor.variables),
    ("expand a tensor", "tensor", lambda editor: editor.expand("x")),
    ("hover on a tensor of 25 MB", "tensor", lambda editor: editor.hover("x")),
    ("hover on a tensor of 1 GB", "large", lambda editor: editor.hover("x")),
)


def measure(seconds: float, least: int, most: int) -> list[Viewed]:
    """Measure all cases, each for about `seconds`."""
    return [_measure(*case, seconds, least, most) for case in _CASES]


def _measure(
    what: str, case: str, act: Callable[[_Editor], None], seconds: float, least: int, most: int
) -> Viewed:
    with contextlib.ExitStack() as sessions:
        ours, stock = _Editor(None, case), _Editor(STOCK_ADAPTER, case)
        sessions.callback(_end, ours.session)
        sessions.callback(_end, stock.session)
        found: dict[_Editor, list[float]] = {ours: [], stock: []}
        answers = _timed(stock, act) is not None
        _timed(ours, act)
        for _ in rounds(seconds, least, most):
            for editor in (ours, stock) if answers else (ours,):
                passed = _timed(editor, act)
                if passed is not None:
                    found[editor].append(passed)
        return Viewed(
            what,
            quantile(found[ours], 0.5),
            quantile(found[stock], 0.5) if found[stock] else None,
            len(found[ours]),
        )


def _end(session: Session) -> None:
    """Close a session, also one whose program still makes a text of ten million elements."""
    for pid in session.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(AssertionError):
        hang_up(session)


def _timed(editor: _Editor, act: Callable[[_Editor], None]) -> float | None:
    began = time.perf_counter()
    try:
        act(editor)
    except AssertionError:
        return None
    return (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    for case in _CASES:
        row = _measure(*case, seconds=2, least=3, most=20)
        print(row, f"ratio {row.ratio:.4f}", row.met, flush=True)
