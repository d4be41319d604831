"""The exception and the warning that a program gets from its own watches (see `local`).

`TensorpointHit` is the one exception that the guards around our hooks let through; whatever else is
raised in them is a fault of ours. It derives from Exception and from nothing narrower: a condition
may be about anything, and code that handles its own FloatingPointError, or a RuntimeError for lack
of memory, must not take it for one of those.
"""

from __future__ import annotations

from dataclasses import asdict
from types import CodeType
from typing import Any

from ..wire import Stop


class TensorpointHit(Exception):
    """A tensorpoint fired in a `watch` with `on="raise"`. Its text is the diagnosis."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.text)
        #: What fired, where, and the diagnosis in parts.
        self.stop = stop
        #: What runs at the line of the stop, where the traceback ends for the user.
        self.code: CodeType | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # As plain values: the process that reads it may have no agent.
        return self._again, (asdict(self.stop),)

    @classmethod
    def _again(cls, fields: dict[str, Any]) -> TensorpointHit:
        return cls(Stop.of(fields))


class TensorpointWarning(UserWarning):
    """A tensorpoint fired in a `watch` with `on="warn"`, or one can't be shown."""


for _public in (TensorpointHit, TensorpointWarning):
    _public.__module__ = "tensorpoint"  # where users find them, and pickle

#: As the guards call it.
Hit = TensorpointHit
