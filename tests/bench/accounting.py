"""Time spent in our hooks, read from inside the process that runs them.

The share of a step is small beside the noise of two steps on a shared machine, so it is not taken
from their difference: each hook is wrapped in two readings of the thread's CPU clock. What the
readings themselves cost is measured in the same process and subtracted, and what torch pays for
running any hooks at all (its slow path of `Module.__call__`, its calls into Python from autograd's
nodes) is measured and added.

Hooks are torch's global ones on modules and optimizers, those on parameters, and the entrances of
the agent that are no hooks: what it does at the ends of a backward pass, for each output in it, for
each attention, and for each operation that is recorded (with the operation itself, so a little too
much). The plain function around a tapped function (0.1 us) is left out.
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
from torch.utils._python_dispatch import TorchDispatchMode

_REPEATS = 200
_BATCHES = 15
_NODES = 200


@dataclass(frozen=True)
class Costs:
    """Nanoseconds: of one reading's interval, of one wrapper in all, of torch's plumbing.

    The latter for a module call with global hooks, and with the first of them alone; for a node of
    autograd with one; and for an operation under a dispatch mode.
    """

    interval: float
    wrapper: float
    plumbing: float
    plumbing_before: float
    node: float
    operation: float


@dataclass
class Account:
    """What ran between two readings, over all hooks of a step."""

    nanoseconds: int = 0
    runs: int = 0
    #: Of these, hooks before and after a module, and on nodes of autograd, and operations that are
    #: recorded.
    modules: int = 0
    exits: int = 0
    nodes: int = 0
    operations: int = 0

    def plumbing(self, costs: Costs) -> float:
        """What torch took to call the hooks."""
        return (
            self.exits * costs.plumbing
            + (self.modules - self.exits) * costs.plumbing_before
            + self.nodes * costs.node
            + self.operations * costs.operation
        )

    def wrap(self, hook: Callable[..., Any], kind: str = "") -> Callable[..., Any]:
        clock = time.thread_time_ns
        of_module, of_exit, of_node, of_operation = (
            kind == name for name in ("module", "exit", "node", "operation")
        )

        def timed(*args: Any, **named: Any) -> Any:
            began = clock()
            result = hook(*args, **named)
            self.nanoseconds += clock() - began
            self.runs += 1
            self.modules += of_module
            self.nodes += of_node
            self.exits += of_exit
            self.operations += of_operation
            return result

        return timed


@contextmanager
def accounted(model: nn.Module) -> Iterator[Account]:
    """Wrap the hooks that are registered now."""
    account = Account()
    with ExitStack() as stack:
        stack.enter_context(_wrapped(registry._global_forward_pre_hooks, account, "module"))
        stack.enter_context(_wrapped(registry._global_forward_hooks, account, "exit"))
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
    requests: Any = sys.modules.get("_tensorpoint.agent.requests")
    agent = requests._agent if requests is not None else None
    if agent is None:
        return
    yield agent._gradients, "_tell", ""
    yield from ((agent._taps, name, "") for name in ("attention", "attention_weights"))
    for watch in agent._watches:
        if hasattr(watch, "_passes"):
            yield watch._passes, "came_by", "node"
    recorder: Any = sys.modules["_tensorpoint.agent.ops.recorder"]
    yield recorder.Recorder, "_run", "operation"
    after_model: Any = sys.modules["_tensorpoint.agent.ops.after_model"]
    yield after_model.AfterModelBackward, "_ran", "node"


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
    own = vars(owner).get(name)
    setattr(owner, name, account.wrap(getattr(owner, name), kind))
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)  # the class has it
        else:
            setattr(owner, name, own)


def measure_costs() -> Costs:
    """Measure the accounting and torch's plumbing here; nothing may be hooked meanwhile."""
    account = Account()
    timed = account.wrap(lambda *_: None)
    bare: Callable[..., Any] = lambda *_: None  # noqa: E731
    wrapper = _least(lambda: timed(None, None)) - _least(lambda: bare(None, None))
    clock = time.thread_time_ns
    interval = median(-(clock() - clock()) for _ in range(_REPEATS * _BATCHES))
    plumbing, before = _plumbing()
    return Costs(interval, wrapper, plumbing, before, _node(), _operation())


def _plumbing() -> tuple[float, float]:
    """With both hooks, and with the one before alone."""
    module, value = nn.Identity(), torch.zeros(1)
    plain = _least(lambda: module(value))
    handles = [registry.register_module_forward_pre_hook(lambda *_: None)]
    before = _least(lambda: module(value))
    handles.append(
        registry.register_module_forward_hook(lambda *_: None, with_kwargs=True, always_call=True)
    )
    both = _least(lambda: module(value))
    for handle in handles:
        handle.remove()
    empty: Callable[..., Any] = lambda *_: None  # noqa: E731
    call = _least(lambda: empty(None, None))
    return both - plain - 2 * call, before - plain - call


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


def _operation() -> float:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    value = torch.zeros(1)
    plain = _least(value.neg)
    with Mode():
        return _least(value.neg) - plain


def _least(act: Callable[[], object]) -> float:
    """Nanoseconds of one `act()`: the least mean of several batches."""
    means: list[float] = []
    for _ in range(_BATCHES):
        began = time.thread_time_ns()
        for _ in range(_REPEATS):
            act()
        means.append((time.thread_time_ns() - began) / _REPEATS)
    return min(means)
