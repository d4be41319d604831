"""Bad gradients of what is computed outside of models: the operation, at the first stop."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tensorpoint.agent.ops import precise
from tensorpoint.agent.ops.forwards import Limits
from tests.unit.agent.ops.test_locate import locating

BY_ROOT = ("aten.div.Tensor", "SqrtBackward0", "aten.sqrt.default")


def blank(inputs: int = 3, outputs: int = 3) -> nn.Linear:
    """A model whose output is 0."""
    model = nn.Linear(inputs, outputs)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    return model


def line_of(function: Callable[..., Any], text: str) -> int:
    """The line of a function in this file that contains `text`."""
    code = function.__code__
    with open(code.co_filename, encoding="utf-8") as file:
        lines = file.read().splitlines()
    return next(
        number
        for number, line in enumerate(lines, 1)
        if number > code.co_firstlineno and text in line
    )


def test_the_backward_of_a_loss_outside_of_modules() -> None:
    model = blank()

    def loss(output: torch.Tensor) -> torch.Tensor:
        squares = output.square()
        return squares.sum(-1).sqrt().mean()

    with locating() as agent:
        loss(model(torch.randn(4, 3))).backward()
    assert agent.report == BY_ROOT
    located = agent.located[0]
    assert located is not None and located.report is not None
    report = located.report
    line = line_of(loss, ".sqrt()")
    assert (report.line, report.forward_line, report.function) == (line, line, "loss")
    assert report.cause == "The slope of sqrt at 0 is infinite: squares.sum(-1) at [0] is 0."
    assert report.cure is not None and "eps" in report.cure


def test_of_two_models_and_losses_between_their_calls() -> None:
    first, second = nn.Linear(3, 3), blank()
    with locating() as agent:
        x = torch.randn(4, 3)
        one = (first(x) - x).square().sum().add(1.0).sqrt()
        two = second(x)
        three = first(x).sum()
        (one + two.square().sum().sqrt() + three).backward()
    assert agent.report == BY_ROOT


def test_a_graph_that_is_kept_for_a_second_backward() -> None:
    model = blank()
    with locating() as agent:
        output = model(torch.randn(4, 3))
        norm = output.square().sum().sqrt()
        output.sum().backward(retain_graph=True)
        assert not agent.located
        norm.backward()
    assert agent.report == BY_ROOT


class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        root = x.sqrt()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (root,) = ctx.saved_tensors
        return gradient / (2 * root)


def test_in_the_backward_of_a_function_of_the_users() -> None:
    model = blank()
    with locating() as agent:
        Root.apply(model(torch.randn(4, 3)).square()).sum().backward()
    located = agent.located[0]
    assert located is not None and located.report is not None
    assert located.report.name == "aten.div.Tensor"
    assert located.report.line == line_of(Root.backward, "gradient / (2 * root)")


def test_the_gradient_of_a_gradient() -> None:
    model, x = nn.Linear(3, 1, bias=False), torch.zeros(4, 3, requires_grad=True)

    def penalty() -> torch.Tensor:
        (slope,) = torch.autograd.grad(model(x).pow(2).sum(), [x], create_graph=True)
        return slope.pow(2).sum(-1).sqrt().sum()

    with locating() as agent:
        penalty().backward()
    assert agent.report == BY_ROOT
    located = agent.located[0]
    assert located is not None and located.report is not None
    assert located.report.line == line_of(penalty, ".sqrt()")


class Energy(nn.Module):
    """A power whose second derivative is infinite at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(3, 4), nn.Linear(4, 1)
        self.drop = nn.Dropout(0.1)
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        h = self.drop(self.encode(x))
        h = h * (h > 0)
        powered = h**1.5
        return self.decode(powered)


def test_the_second_backward_of_an_operation_in_a_forward() -> None:
    model = Energy()
    with locating() as agent:
        x = torch.randn(5, 3, requires_grad=True)
        (force,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        force.square().sum().backward()
    located = agent.located[0]
    assert located is not None and located.report is not None
    report = located.report
    assert (report.name, report.node) == ("aten.pow.Tensor_Scalar", "PowBackward0")
    assert report.forward_line == line_of(Energy.forward, "powered = h**1.5")
    assert model.count == 1  # it was run again for the line, and put back


def test_training_is_the_same_bit_for_bit() -> None:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 3))
        optimizer = torch.optim.Adam(model.parameters())
        for step in range(4):
            x = torch.randn(5, 3, requires_grad=True)
            output = model(x)
            (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
            bad = output.square().sum(-1) * (0.0 if step == 2 else 1.0)
            loss = slope.square().sum() + bad.sqrt().nan_to_num().sum()
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.nan_to_num_()
            optimizer.step()
        return [parameter.detach() for parameter in model.parameters()]

    plain = run()
    with locating() as agent:
        watched = run()
    assert agent.report == BY_ROOT
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))


class LogOfZero(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return (gradient * 0).log()


class Spoils(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return LogOfZero.apply(x)  # type: ignore[no-any-return]


def test_a_gradient_that_a_mask_drops_is_no_cause_of_a_later_one() -> None:
    model = nn.Sequential(nn.Linear(3, 3), Spoils(), nn.Linear(3, 3))
    with locating() as agent:
        output = model(torch.ones(4, 3))
        masked = (output.detach() * 0).requires_grad_().sqrt()  # its gradient goes nowhere
        torch.where(output > 1e9, masked, output).sum().backward()
    assert agent.report[0] == "aten.log.default"


def test_nothing_of_a_loss_is_kept_once_its_backward_is_over() -> None:
    model = nn.Linear(3, 3)
    with locating() as agent:
        hidden = model(torch.randn(4, 3)).square()
        watched = weakref.ref(hidden.untyped_storage()), weakref.ref(hidden)
        hidden.add(1.0).sqrt().sum().backward()
        del hidden
        gc.collect()
        assert watched[1]() is None
    assert not agent.located


def test_of_a_large_loss_the_oldest_operands_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each result has 400 bytes, counted where it is made and where it is used: five remain."""
    monkeypatch.setattr(precise, "_KEPT", Limits(one=500, all=4000))
    model = nn.Linear(3, 10)
    with locating() as agent:
        first = model(torch.randn(10, 3)).square()
        made = [weakref.ref(first)]
        hidden = first.add(1.0)
        del first
        for _ in range(20):
            made.append(weakref.ref(hidden))
            hidden = hidden + 1.0
        gc.collect()
        alive = [reference() is not None for reference in made]
        assert alive == [False] * (len(made) - 5) + [True] * 5
        (hidden * 0.0).square().sum().sqrt().backward()
    assert agent.report == BY_ROOT


def test_an_operation_whose_operands_are_gone_is_named_with_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precise, "_KEPT", Limits(one=500, all=300))

    def loss(output: torch.Tensor) -> torch.Tensor:
        root = output.square().sum().sqrt()
        return (output.new_ones(20).exp() * root).sum()

    with locating() as agent:
        loss(blank()(torch.randn(4, 3))).backward()
    assert agent.report == BY_ROOT
    located = agent.located[0]
    assert located is not None and located.report is not None
    assert located.report.forward_line == line_of(loss, ".sqrt()")
