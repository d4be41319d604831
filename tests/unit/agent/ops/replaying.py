"""What tests of replays share: hooks and a replayer in this process, and what they found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn

from tensorpoint.agent.hooks import Hooks
from tensorpoint.agent.modules import Call, Names
from tensorpoint.agent.ops.recorder import NotReplayable
from tensorpoint.agent.ops.replay import Found, Replayer
from tensorpoint.agent.ops.state import Entries
from tensorpoint.agent.ops.suspect import ForwardSuspect
from tensorpoint.agent.tensors import has_nonfinite, tensors_in


@dataclass
class Looking:
    """Looks for the operation of the first bad output, as the watch does."""

    entries: Entries
    replayer: Replayer
    found: list[Found] = field(default_factory=list[Found])
    refused: list[str] = field(default_factory=list[str])
    #: Function and line of code where the second pass stopped.
    live: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    at_stop: Callable[[FrameType], None] | None = None

    def on_exit(self, call: Call, outer: list[Call], output: Any) -> None:
        if self.found or self.refused:
            return
        if any(has_nonfinite(tensor) for _, tensor in tensors_in(output, "")):
            try:
                found = self.replayer.find(ForwardSuspect(output, call=call, outer=tuple(outer)))
            except NotReplayable as reason:
                self.refused.append(str(reason))
                return
            self.found.append(found)
            assert found.live is not None
            assert found.live(self._stop) == bool(self.live)

    def _stop(self, frame: FrameType) -> None:
        self.live.append((frame.f_code.co_name, frame.f_lineno - frame.f_code.co_firstlineno))
        if self.at_stop is not None:
            self.at_stop(frame)

    @property
    def operation(self) -> tuple[str, int]:
        """Its name, and its line counted from the `def`."""
        (found,) = self.found
        return found.made.name, self.live[0][1]


@contextmanager
def looking() -> Iterator[Looking]:
    def fail(culprit: Any, error: Exception) -> None:
        raise error

    entries, hooks = Entries(), Hooks(Names(), fail)
    watch = Looking(entries, Replayer(entries, hooks.aside))
    hooks.listen([entries, watch])
    hooks.install()
    try:
        yield watch
    finally:
        hooks.remove()


def run(model: nn.Module, steps: int, batch: Callable[[], torch.Tensor]) -> Looking:
    """Call the model until something bad is found."""
    with looking() as watch:
        for _ in range(steps):
            model(batch())
            if watch.found or watch.refused:
                break
    return watch


def rows() -> torch.Tensor:
    return torch.randn(4, 4)
