"""Whether it is worth its time to record what a program computes without a model.

Recording an operation costs 0.1 to 0.3 ms under a debugger on Python 3.11, whatever it computes: a
step of 160 ms takes a tenth longer, one of 0.9 ms ten times as long. So it is tried: some steps
with it and some without, each from the end of one backward pass to that of the next.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

#: How much longer a step may take.
_DEAREST = 1.15
#: Steps of either kind: one of them may be slow for another reason.
_STEPS = 3


class Trial:
    """Of one thread."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._last: float | None = None
        self._recorded: list[float] = []
        self._plain: list[float] = []

    def step(self) -> None:
        """A backward pass has ended."""
        if len(self._plain) == _STEPS:
            return
        now = self._clock()
        if self._last is not None:
            (self._recorded if self.records else self._plain).append(now - self._last)
        self._last = now

    @property
    def records(self) -> bool:
        """Whether the step that begins is recorded: as a trial, or since that is cheap enough."""
        if len(self._plain) == _STEPS:
            return min(self._recorded) <= _DEAREST * min(self._plain)
        return len(self._recorded) < _STEPS
