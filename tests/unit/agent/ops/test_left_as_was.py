"""However a look for an operation ends, nothing of it is left on in the program."""

from __future__ import annotations

import builtins
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch
import torch._dynamo.eval_frame  # (else it is loaded in the midst)
from torch import nn
from torch.nn.modules import module as global_hooks
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tensorpoint.agent import quiet
from tests.unit.agent.ops.replaying import looking
from tests.unit.agent.ops.test_locate import BY_ROOT, Net, locating


def modes() -> dict[str, Any]:
    """What is on, on this thread and in torch as a whole."""
    inside: Any = torch._C
    return {
        "dispatch modes": inside._len_torch_dispatch_stack(),
        "function modes": inside._len_torch_function_stack(),
        "flags": (
            _python_dispatch._is_in_torch_dispatch_mode,
            _python_dispatch._is_in_non_infra_torch_dispatch_mode,
            _python_dispatch._is_in_any_mode_without_ignore_compile_internals,
        ),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "anomaly": torch.is_anomaly_enabled(),
        "saved tensors": inside._autograd._top_saved_tensors_default_hooks(False),
        "graph task": inside._current_graph_task_id,
        "stance": torch._dynamo.eval_frame._stance.stance,
    }


def replaced() -> dict[str, Any]:
    """Who is called in place of whom, and who looks on."""
    hooks = (
        global_hooks._global_forward_pre_hooks,
        global_hooks._global_forward_hooks,
        global_hooks._global_backward_hooks,
        global_hooks._global_backward_pre_hooks,
    )
    return {
        "hooks": [list(found) for found in hooks],
        "builtins": (builtins.open, sys.stdout, sys.stderr),
        "waits": (threading.Barrier.wait, threading.Condition.wait),
        "trace": (sys.gettrace(), threading.gettrace()),
        "quiet": quiet.is_quiet(),
    }


@contextmanager
def left_as_was(model: nn.Module) -> Iterator[None]:
    def now() -> dict[str, Any]:
        own = [
            {**part._forward_hooks, **part._forward_pre_hooks, **part._backward_hooks}
            for part in model.modules()
        ]
        return {**modes(), **replaced(), "own": own}

    before = now()
    yield
    # A thread leaves its mode where it calls a module next, or a moment after it has ended.
    deadline = time.monotonic() + 30
    while now() != before and time.monotonic() < deadline:
        nn.Identity()(None)
        time.sleep(0.01)
    assert now() == before


class Terminated(BaseException):
    """As a thread is ended from outside, in whatever it does."""


class Again:
    """Raises where the program runs something again that it has run `times` times."""

    def __init__(self, error: type[BaseException], times: int = 1) -> None:
        self._error, self._left = error, times

    def __call__(self, *_: object) -> None:
        self._left -= 1
        if self._left < 0:
            raise self._error("in the midst")

    @property
    def has_raised(self) -> bool:
        return self._left < 0


class Divides(nn.Module):
    """0/0 in the forward, without a gradient around it, and something else before or after."""

    def __init__(self, act: Callable[[], None], before: bool) -> None:
        super().__init__()
        self.linear, self.act, self.before = nn.Linear(3, 3), act, before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            if self.before:
                self.act()
            y = (y - y) / (y - y)
            if not self.before:
                self.act()
        return y


class DividesBackward(torch.autograd.Function):
    """NaN in the backward, and something else."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, act: Callable[[], None]) -> torch.Tensor:
        ctx.act = act
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        ctx.act()
        return (gradient - gradient) / (gradient - gradient), None


class Bad(nn.Module):
    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(3, 3), act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return DividesBackward.apply(self.linear(x), self.act)


ERRORS = [ValueError, KeyboardInterrupt, Terminated]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("error", ERRORS)
def test_what_is_run_again_raises(error: type[BaseException], times: int, before: bool) -> None:
    """In the first run (`times` is 1) or the second; the program raises it, but for exceptions."""
    act = Again(error, times)
    model = Divides(act, before)
    with left_as_was(model), looking():
        if error is ValueError:
            model(torch.randn(2, 3))
        else:
            with pytest.raises(error, match="in the midst"):
                model(torch.randn(2, 3))
    assert act.has_raised


@pytest.mark.parametrize("error", ERRORS)
def test_it_ends_at_the_stop(error: type[BaseException]) -> None:
    model = Divides(lambda: None, before=True)
    with left_as_was(model), looking() as watch:
        watch.at_stop = Again(error, 0)
        if error is ValueError:
            model(torch.randn(2, 3))
        else:
            with pytest.raises(error, match="in the midst"):
                model(torch.randn(2, 3))
    assert watch.live


def test_at_the_stop_no_mode_is_on() -> None:
    model, seen = Divides(lambda: None, before=True), list[dict[str, Any]]()

    def look(frame: FrameType) -> None:
        seen.append(modes())

    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        inside = modes()
    with looking() as watch:
        watch.at_stop = look
        model(torch.randn(2, 3))
    # (What is saved for a backward there is none of the program's own graph's.)
    own = {"saved tensors": None, "stance": None}
    assert {**seen[0], **own} == {**inside, **own}


@pytest.mark.parametrize("error", ERRORS)
def test_a_backward_that_is_run_again_raises(error: type[BaseException]) -> None:
    act = Again(error)
    model = Bad(act)
    with left_as_was(model), locating():
        output = model(torch.randn(2, 3))
        if error is ValueError:
            output.sum().backward()
        else:
            with pytest.raises(error, match="in the midst"):
                output.sum().backward()
    assert act.has_raised


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_a_bad_gradient_that_is_found(reentrant: bool | None) -> None:
    model = Net(reentrant)
    with left_as_was(model):
        with locating() as agent:
            model(torch.randn(4, 3, requires_grad=True)).sum().backward()
        assert agent.report == BY_ROOT


@pytest.mark.parametrize("precision", ["module", "op"])
@pytest.mark.parametrize("error", ERRORS)
def test_a_loss_raises_while_it_is_recorded(error: type[BaseException], precision: str) -> None:
    model, act = nn.Linear(3, 3), Again(error, 0)
    with left_as_was(model), locating(precision):
        with pytest.raises(error, match="in the midst"):
            act(model(torch.randn(4, 3)).sum())
        if error is not ValueError:
            model(torch.randn(4, 3)).sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("error", ERRORS)
def test_a_checkpoint_of_the_loss_raises(error: type[BaseException], reentrant: bool) -> None:
    model, act = nn.Linear(3, 3), Again(error)

    def loss(output: torch.Tensor) -> torch.Tensor:
        act()
        return output.square().sum()

    with left_as_was(model), locating():
        lost = checkpoint(loss, model(torch.randn(4, 3)), use_reentrant=reentrant)
        with pytest.raises(error, match="in the midst"):
            lost.backward()
    assert act.has_raised


def test_a_thread_ends_with_a_loss_that_has_no_backward() -> None:
    model = nn.Linear(3, 3)

    def run() -> None:
        model(torch.randn(4, 3)).sum()
        assert torch._C._len_torch_dispatch_stack() == 1

    with left_as_was(model), locating():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()


def test_modes_of_the_programs_own_on_another_thread() -> None:
    """torch's flags are the process's: a mode that is left last sets them as it found them."""
    model = nn.Linear(3, 3)
    is_on, may_end = threading.Event(), threading.Event()

    def run() -> None:
        with TorchDispatchMode():
            is_on.set()
            may_end.wait()

    with left_as_was(model), locating():
        thread = threading.Thread(target=run)
        thread.start()
        is_on.wait()
        lost = model(torch.randn(4, 3)).sum()
        may_end.set()
        thread.join()
        lost.backward()
