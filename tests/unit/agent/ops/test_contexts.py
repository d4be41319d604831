"""Each fault, wherever it is: the operation and its line are named.

In a module of its own, between the calls of a forward, under autocast, in a checkpointed block of
either kind, in a layer of a transformers model, and in a loss that is outside of any module.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tensorpoint
from tests.unit.agent.ops.faults import BACKWARD, FORWARD, QUIET, expected, logsumexp_of_nothing

Fault = Callable[[torch.Tensor], torch.Tensor]


class Module(nn.Module):
    """A fault in a module of its own."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fault(x)


class Between(nn.Module):
    """A fault between the calls of two layers."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault, self.first, self.second = fault, nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.fault(self.first(x)).float())


class Checkpointed(nn.Module):
    """A block that is run again in backward."""

    def __init__(self, block: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.stem, self.block, self.reentrant = nn.Linear(4, 4), block, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, self.stem(x), use_reentrant=self.reentrant)


def in_module(fault: Fault) -> Any:
    model = nn.Sequential(nn.Linear(4, 4), Module(fault), nn.Dropout(0.1))
    return partial(model, torch.randn(3, 4))


def in_forward(fault: Fault) -> Any:
    return partial(Between(fault), torch.randn(3, 4))


def under_checkpoint(fault: Fault, reentrant: bool) -> Any:
    return partial(Checkpointed(Between(fault), reentrant), torch.randn(3, 4))


def in_transformers(fault: Fault) -> Any:
    from transformers import GPT2Config, GPT2Model

    sizes: dict[str, Any] = {"n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    model: Any = GPT2Model(GPT2Config(vocab_size=20, **sizes))
    model.h[1].mlp.act = Module(fault)
    return lambda: model(torch.randint(0, 20, (2, 5))).last_hidden_state


def in_loss(fault: Fault) -> Any:
    model, x = nn.Linear(4, 4), torch.randn(3, 4)
    return lambda: fault(model(x))


CONTEXTS: dict[str, Callable[[Fault], Any]] = {
    "module": in_module,
    "forward": in_forward,
    "autocast": in_forward,
    "checkpoint": partial(under_checkpoint, reentrant=False),
    "reentrant checkpoint": partial(under_checkpoint, reentrant=True),
    "transformers": in_transformers,
    "loss": in_loss,
}


def stops_of(fault: Fault, context: str, *, backward: bool) -> list[Any]:
    torch.manual_seed(0)
    run = CONTEXTS[context](fault)
    stops: list[Any] = []
    casting = torch.autocast("cpu", torch.bfloat16) if context == "autocast" else nullcontext()
    with tensorpoint.watch("nonfinite()", on=stops.append):
        with casting:
            output = run()
        if backward or context == "loss":
            output.float().square().sum().backward()
    return stops


def first_stop(fault: Fault, context: str, *, backward: bool) -> Any:
    stops = stops_of(fault, context, backward=backward)
    assert stops, "it did not stop"
    return stops[0]


def name(fault: Any) -> str:
    return fault.__name__


@pytest.mark.filterwarnings("ignore:var.*degrees of freedom")
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("fault", FORWARD, ids=name)
def test_in_a_forward(fault: Fault, context: str) -> None:
    stop, wanted = first_stop(fault, context, backward=False), expected(fault)
    assert stop.operation is not None, stop.text
    assert (stop.operation.name.split(".")[1], stop.operation.line) == (wanted.op, wanted.line)
    assert stop.operation.cause is not None


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_row_of_nothing(context: str) -> None:
    """Its -inf comes of a mask; the NaN is made of it by the layers behind it."""
    stop, wanted = (
        first_stop(logsumexp_of_nothing, context, backward=False),
        expected(logsumexp_of_nothing),
    )
    assert (stop.operation.name, stop.operation.line) == ("aten.logsumexp.default", wanted.line)
    assert "holds nothing but -inf (" in stop.operation.cause


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("fault", BACKWARD, ids=name)
def test_in_a_backward(fault: Fault, context: str) -> None:
    stop, wanted = first_stop(fault, context, backward=True), expected(fault)
    assert stop.event == "nonfinite.backward"
    operation = stop.operation
    assert operation is not None, stop.text
    assert operation.forward_op is not None, stop.text
    assert (operation.forward_op.split(".")[1], operation.forward_line) == (wanted.op, wanted.line)
    assert operation.cause is not None


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("pattern", QUIET, ids=name)
def test_what_looks_alike_does_not_stop(pattern: Fault, context: str) -> None:
    assert [stop.text for stop in stops_of(pattern, context, backward=True)] == []
