"""Time spent in our hooks, read from inside the process that runs them.

The share of a step is small beside the noise of two steps on a shared machine, so it is not taken
from their difference: each hook is wrapped in two readings of the thread's CPU clock. What the
readings themselves cost is measured in the same process and subtracted, and what torch pays for
running any hooks at all (its slow path of `Module.__call__`, its calls into Python from autograd's
nodes) is measured and added.

Hooks are torch's global ones on modules and optimizers, those on parameters, and the entrances of
the agent that are no hooks: what it does at the ends of a backward pass, for each output in it, and
for each attention. The plain function around a tapped function (0.1 us) is left out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as registry

_REPEATS = 200
_BATCHES = 15
_NODES = 200


@dataclass(frozen=True)
class Costs:
    """Nanoseconds: of one reading's interval, of one wrapper in all, of torch's plumbing.

    The latter for a module call with global hooks, and for a node of autograd with one.
    """

    interval: float
    wrapper: float
    plumbing: float
    node: float


@dataclass
class Account:
    """What ran between two readings, over all hooks of a step."""

    nanoseconds: int = 0
    runs: int = 0
    #: Of these, hooks on modules and on nodes of autograd.
    modules: int = 0
    nodes: int = 0

    def wrap(self, hook: Callable[..., Any], kind: str = "") -> Callable[..., Any]:
        clock = time.thread_time_ns
        of_module, of_node = kind == "module", kind == "node"

        def timed(*args: Any, **named: Any) -> Any:
            began = clock()
            result = hook(*args, **named)
            self.nanoseconds += clock() - began
            self.runs += 1
            self.modules += of_module
            self.nodes += of_node
            return result

        return timed


@contextmanager
def accounted(model: nn.Module) -> Iterator[Account]:
    """Wrap the hooks that are registered now."""
    account = Account()
    with ExitStack() as stack:
        for table in (registry._global_forward_pre_hooks, registry._global_forward_hooks):
            stack.enter_context(_wrapped(table, account, "module"))
        optimizers: Any = sys.modules["torch.optim.optimizer"]
        stack.enter_context(_wrapped(optimizers._global_optimizer_pre_hooks, account))
        stack.enter_context(_wrapped(optimizers._global_optimizer_post_hooks, account))
        for parameter in model.parameters():
            hooks: Any = parameter._post_accumulate_grad_hooks
            if hooks:
                stack.enter_context(_wrapped(hooks, account, "node"))
        for owner, name, kind in _entrances():
            stack.enter_context(_replaced(owner, name, account, kind))
        yield account


def _entrances() -> Iterator[tuple[Any, str, str]]:
    """Methods of the agent that are called for what happens, and are no hooks."""
    session: Any = sys.modules.get("_tensorpoint.agent.session")
    agent = session._agent if session is not None else None
    if agent is None:
        return
    yield agent._gradients, "_tell", ""
    yield from ((agent._taps, name, "") for name in ("attention", "attention_weights"))
    for watch in agent._watches:
        if hasattr(watch, "_passes"):
            yield watch._passes, "came_by", "node"


@contextmanager
def _wrapped(table: dict[Any, Any], account: Account, kind: str = "") -> Iterator[None]:
    original = dict(table)
    table.update({key: account.wrap(hook, kind) for key, hook in table.items()})
    try:
        yield
    finally:
        table.update(original)


@contextmanager
def _replaced(owner: Any, name: str, account: Account, kind: str) -> Iterator[None]:
    setattr(owner, name, account.wrap(getattr(owner, name), kind))
    try:
        yield
    finally:
        delattr(owner, name)  # the class has it


def measure_costs() -> Costs:
    """Measure the accounting and torch's plumbing here; nothing may be hooked meanwhile."""
    account = Account()
    timed = account.wrap(lambda *_: None)
    bare: Callable[..., Any] = lambda *_: None  # noqa: E731
    wrapper = _least(lambda: timed(None, None)) - _least(lambda: bare(None, None))
    clock = time.thread_time_ns
    interval = median(-(clock() - clock()) for _ in range(_REPEATS * _BATCHES))
    return Costs(interval, wrapper, _plumbing(), _node())


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


def _node() -> float:
    empty: Callable[..., Any] = lambda _: None  # noqa: E731

    def of_pass(hook: Callable[..., Any] | None) -> int:
        value = torch.ones(1, requires_grad=True)
        for _ in range(_NODES):
            value = value * 2
            if hook is not None:
                value.register_hook(hook)
        began = time.thread_time_ns()
        value.backward()
        return time.thread_time_ns() - began

    plain, hooked = (min(of_pass(hook) for _ in range(_BATCHES)) for hook in (None, empty))
    return max(0.0, (hooked - plain) / _NODES - _least(lambda: empty(None)))


def _least(act: Callable[[], object]) -> float:
    """Nanoseconds of one `act()`: the least mean of several batches."""
    means: list[float] = []
    for _ in range(_BATCHES):
        began = time.thread_time_ns()
        for _ in range(_REPEATS):
            act()
        means.append((time.thread_time_ns() - began) / _REPEATS)
    return min(means)
