"""The metrics that are one number per step: loss, scale, memory_growth and score.

loss: the value that backward is called on, if it has one element, divided by the gradient scaler's
scale. It is looked at before the pass begins. Cost: one read.

scale: what the gradient scaler has just set (`GradScaler.update`). One read.

memory_growth: bytes in use now, less those at the same root's last call: of CUDA's allocator
(`memory_allocated`) if the program uses CUDA, else the resident set of the process
(/proc/self/statm; Linux only). 2 us.

score: what the user's function returns for the root module's output, as a float. A function that
fails switches the metric off with one message.
"""

from __future__ import annotations

import importlib
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .. import debugger
from ..judge import Judge
from ..modules import Call
from ..rules import Rule
from .base import Event, Watch

if TYPE_CHECKING:
    import torch
    from torch.nn import Module


class _Scalar(Watch):
    metric: ClassVar[str]

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def _look(self, value: float, what: str, values: dict[str, Any], call: Call | None) -> None:
        module = None if call is None else call.module

        def event() -> Event:
            return Event(
                name=self.metric,
                module=None,
                entered=module,
                headline=f"{what} {value:.6g}",
                sentences=(),
                value=value,
                values=values,
            )

        self._judge.measured(self.metric, value, self._judge.whole(self.metric), event)


class Loss(_Scalar):
    """The loss that backward is called on."""

    metric = "loss"

    def __init__(
        self, judge: Judge, scale_of: Callable[[torch.Tensor | None], float | None]
    ) -> None:
        super().__init__(judge)
        self._scale_of = scale_of

    def on_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """Look at the one number that backward starts from."""
        if len(roots) != 1 or not hasattr(roots[0], "numel") or roots[0].numel() != 1:
            return
        value = float(roots[0].detach().item()) / (self._scale_of(None) or 1.0)
        self._look(value, "loss", {"loss": roots[0]}, None)


class Scale(_Scalar):
    """The gradient scaler's scale."""

    metric = "scale"

    def on_scale(self, value: float) -> None:
        """Look at the new scale."""
        self._look(value, "the gradient scaler's scale is", {}, None)


class MemoryGrowth(_Scalar):
    """How many bytes more are in use than at the root's last call."""

    metric = "memory_growth"

    def __init__(self, judge: Judge) -> None:
        super().__init__(judge)
        self._before: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()

    def arm(self, rules: Sequence[Rule]) -> None:
        self._before = weakref.WeakKeyDictionary()

    def on_root(self, call: Call) -> None:
        """Compare with the last call of the same root."""
        now = _bytes_in_use()
        if now is None:
            return
        before = self._before.get(call.module)
        self._before[call.module] = now
        if before is not None:
            self._look(float(now - before), "bytes in use grew by", {"in_use": now}, call)


def _bytes_in_use() -> int | None:
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized():
        return sum(
            torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count())
        )
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return None


class Score(_Scalar):
    """The user's own function of the root module's output."""

    metric = "score"

    def __init__(self, judge: Judge) -> None:
        super().__init__(judge)
        self._functions: dict[str, Callable[[Any], Any]] = {}

    def arm(self, rules: Sequence[Rule]) -> None:
        self._functions = {}
        self._wanted = {name for rule in rules for name in rule.options(self.metric)}

    def on_exit(self, call: Call, outer: list[Call], output: object) -> None:
        """Ask the function, if this is a root."""
        if outer or debugger.evaluating():
            return
        for name in self._wanted:
            function = self._functions.get(name) or self._functions.setdefault(name, _load(name))
            with sys.modules["torch"].no_grad():
                value = float(function(output))

            def event(name: str = name, value: float = value) -> Event:
                return Event(
                    name=self.metric,
                    module=call.module,
                    entered=call.module,
                    headline=f"{name} returned {value:.6g} for the output of",
                    sentences=(),
                    value=value,
                    values={"output": output},
                )

            rules = self._judge.whole(self.metric)
            self._judge.measured(self.metric, value, rules, event, option=name)


def _load(name: str) -> Callable[[Any], Any]:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
