"""A step by layers beside one by lines, in two sessions that take turns; and what is left of it.

The layers are tiny, so that their own run counts for nothing. The program times its own steps:
while somebody has stepped by layers and gone on, it has to be as fast as before.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.bench.latency import hang_up
from tests.bench.rounds import rounds, taking_turns
from tests.bench.spread import quantile
from tests.protocol.dap import Message, Session, line_of

TARGET_RATIO = 2.0

_PROGRAM = Path(__file__).with_name("layered.py")
_WARM_UP = 6


@dataclass(frozen=True)
class LayerSteps:
    """Milliseconds from a step to its stop, at the median."""

    line_ms: float
    layer_ms: float
    rounds: int

    @property
    def ratio(self) -> float:
        return self.layer_ms / self.line_ms

    @property
    def met(self) -> bool:
        return self.ratio <= TARGET_RATIO


class _Editor:
    def __init__(self, sessions: contextlib.ExitStack, command: str, by_layers: bool) -> None:
        self._command = command
        self.session = Session()
        sessions.callback(hang_up, self.session)
        self.session.launch(
            _PROGRAM, filters=[], breakpoints={str(_PROGRAM): [line_of(_PROGRAM, "stop here")]}
        )
        self._stop: Message = self.session.stopped()
        self.session.request("setBreakpoints", source={"path": str(_PROGRAM)}, breakpoints=[])
        if by_layers:
            self.session.console("tp step layer")
            self._stop = self.session.stopped()
        self.milliseconds: list[float] = []

    def take_turn(self, counts: bool) -> None:
        began = time.perf_counter()
        self._stop = self.session.step(self._command, self._stop)
        if counts:
            self.milliseconds.append((time.perf_counter() - began) * 1e3)


def measure(seconds: float, least: int, most: int) -> LayerSteps:
    """Measure both for about `seconds`."""
    with contextlib.ExitStack() as sessions:
        with ThreadPoolExecutor() as pool:
            started = pool.map(
                lambda arguments: _Editor(sessions, *arguments),
                (("next", False), ("stepIn", True)),
            )
        lines, layers = editors = tuple(started)
        for number in range(_WARM_UP):
            for editor in taking_turns(editors, number):
                editor.take_turn(counts=False)
        for number in rounds(seconds, least, most):
            for editor in taking_turns(editors, number):
                editor.take_turn(counts=True)
    return LayerSteps(
        quantile(lines.milliseconds, 0.5),
        quantile(layers.milliseconds, 0.5),
        len(lines.milliseconds),
    )
