"""Time spent in torch's global module hooks, read from inside the process that runs them.

The share of a step is small beside the noise of two steps on a shared machine, so it is not taken
from their difference: each hook is wrapped in two readings of the thread's CPU clock. What the
readings themselves cost is measured in the same process and subtracted, and what torch pays for
running any global hooks at all (its slow path of `Module.__call__`) is measured and added.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as registry

_REPEATS = 200
_BATCHES = 15


@dataclass(frozen=True)
class Costs:
    """Nanoseconds: of one reading's interval, of one wrapper in all, of torch's plumbing a call."""

    interval: float
    wrapper: float
    plumbing: float


@dataclass
class Account:
    """What ran between two readings, over all hooks of a step."""

    nanoseconds: int = 0
    runs: int = 0

    def wrap(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.thread_time_ns

        def timed(*args: Any) -> Any:
            began = clock()
            result = hook(*args)
            self.nanoseconds += clock() - began
            self.runs += 1
            return result

        return timed


@contextmanager
def accounted() -> Iterator[Account]:
    """Wrap the global forward hooks that are registered now."""
    account = Account()
    tables = (registry._global_forward_pre_hooks, registry._global_forward_hooks)
    originals = [dict(table) for table in tables]
    for table in tables:
        table.update({key: account.wrap(hook) for key, hook in table.items()})
    try:
        yield account
    finally:
        for table, original in zip(tables, originals):
            table.update(original)


def measure_costs() -> Costs:
    """Measure the accounting and torch's plumbing here; nothing may be hooked meanwhile."""
    account = Account()
    timed = account.wrap(lambda *_: None)
    bare: Callable[..., Any] = lambda *_: None  # noqa: E731
    wrapper = _least(lambda: timed(None, None)) - _least(lambda: bare(None, None))
    clock = time.thread_time_ns
    interval = median(-(clock() - clock()) for _ in range(_REPEATS * _BATCHES))
    return Costs(interval, wrapper, _plumbing())


def _plumbing() -> float:
    module, value = nn.Identity(), torch.zeros(1)
    plain = _least(lambda: module(value))
    handles = [
        registry.register_module_forward_pre_hook(lambda *_: None),
        registry.register_module_forward_hook(lambda *_: None, with_kwargs=True, always_call=True),
    ]
    hooked = _least(lambda: module(value))
    for handle in handles:
        handle.remove()
    empty: Callable[..., Any] = lambda *_: None  # noqa: E731
    return hooked - plain - 2 * _least(lambda: empty(None, None))


def _least(act: Callable[[], object]) -> float:
    """Nanoseconds of one `act()`: the least mean of several batches."""
    means: list[float] = []
    for _ in range(_BATCHES):
        began = time.thread_time_ns()
        for _ in range(_REPEATS):
            act()
        means.append((time.thread_time_ns() - began) / _REPEATS)
    return min(means)
