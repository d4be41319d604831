"""Exceptions of the program's own have the frames that they have without us."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensorpoint.agent.engine_threads import EngineThreads
from tensorpoint.agent.frames import AGENT_FOLDER
from tensorpoint.agent.tracebacks import leave_out_ours, without_ours
from tests.unit.agent.ops.test_locate import locating

#: Before, a bare `raise` puts the traceback back as it was.
raised_without_us = pytest.mark.skipif(sys.version_info < (3, 11), reason="needs Python 3.11")


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        raise ValueError("the program's")


def in_a_function(model: nn.Module) -> None:
    Raises.apply(model(torch.randn(2, 3))).sum().backward()


def in_a_hook(model: nn.Module) -> None:
    output = model(torch.randn(2, 3))

    def hook(gradient: torch.Tensor) -> None:
        raise ValueError("the program's")

    output.register_hook(hook)
    torch.autograd.grad(output.sum(), list(model.parameters()))


def of_a_second_backward(model: nn.Module) -> None:
    loss = model(torch.randn(2, 3)).sum()
    loss.backward()
    loss.backward()


def frames_of(program: Callable[[nn.Module], None]) -> list[tuple[str, str]]:
    with pytest.raises((ValueError, RuntimeError)) as caught:
        program(nn.Linear(3, 3))
    return [
        (frame.filename, frame.name) for frame in traceback.extract_tb(caught.value.__traceback__)
    ]


@raised_without_us
@pytest.mark.parametrize("program", [in_a_function, in_a_hook, of_a_second_backward])
def test_what_is_raised_in_a_backward(program: Callable[[nn.Module], None]) -> None:
    plain = frames_of(program)
    threads = EngineThreads()
    with locating():
        threads.install()
        try:
            watched = frames_of(program)
        finally:
            threads.remove()
    assert watched == plain


@raised_without_us
def test_what_an_operation_raises_that_is_recorded() -> None:
    def loss(model: nn.Module) -> None:
        output = model(torch.randn(2, 3))
        output.sqrt() @ torch.ones(5, 5)

    plain = frames_of(loss)
    with locating():
        watched = frames_of(loss)
    assert not [file for file, _ in watched if file.startswith(AGENT_FOLDER)]
    torchs = str(Path(torch.__file__).parent)
    assert [frame for frame in watched if not frame[0].startswith(torchs)] == plain


def _raise_by_way_of_us() -> None:
    """Ours, the program's, ours, the program's, from the outside in."""
    source = "def ours(act):\n    act()\n"
    ours: dict[str, Any] = {}
    exec(compile(source, f"{AGENT_FOLDER}made_for_a_test.py", "exec"), ours)

    def inner() -> None:
        raise ValueError("the program's")

    def middle() -> None:
        ours["ours"](inner)

    ours["ours"](middle)


def test_a_traceback_loses_ours_wherever_they_are() -> None:
    with pytest.raises(ValueError) as caught:
        _raise_by_way_of_us()
    trace = caught.value.__traceback__
    assert trace is not None
    names = [frame.name for frame in traceback.extract_tb(without_ours(trace))]
    assert names[1:] == ["_raise_by_way_of_us", "middle", "inner"]


def test_on_the_way_it_loses_those_that_it_has_just_passed() -> None:
    with pytest.raises(ValueError) as caught:
        _raise_by_way_of_us()
    error = caught.value
    trace = error.__traceback__
    assert trace is not None
    assert trace.tb_next is not None
    error.__traceback__ = trace.tb_next.tb_next
    leave_out_ours(error)
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert names == ["middle", "ours", "inner"]
