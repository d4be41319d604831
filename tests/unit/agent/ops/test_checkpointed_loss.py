"""Bad gradients of a loss outside of models that is checkpointed: the operation and its line."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from torch.utils.checkpoint import checkpoint

from tests.unit.agent.ops.test_after_model import BY_ROOT, blank, line_of
from tests.unit.agent.ops.test_locate import Locating, locating

both_kinds = pytest.mark.parametrize("reentrant", [True, False])
Loss = Callable[[torch.Tensor], torch.Tensor]


def checkpointed(loss: Loss, reentrant: bool) -> Loss:
    return partial(checkpoint, loss, use_reentrant=reentrant)


def is_located_at(agent: Locating, function: Callable[..., Any], text: str) -> bool:
    located = agent.located[0]
    assert located is not None
    assert located.report is not None, located.sentences
    return located.report.forward_line == line_of(function, text)


@both_kinds
def test_the_gradient_of_what_the_model_returned(reentrant: bool) -> None:
    def loss(output: torch.Tensor) -> torch.Tensor:
        squares = output.square()
        return squares.sum(-1).sqrt().mean()

    with locating() as agent:
        checkpointed(loss, reentrant)(blank()(torch.randn(4, 3))).backward()
    assert agent.report == BY_ROOT
    assert is_located_at(agent, loss, ".sqrt()")
    located = agent.located[0]
    assert located is not None and located.report is not None
    cause = located.report.cause or ""
    assert cause == "The slope of sqrt at 0 is infinite: squares.sum(-1) at [0] is 0."
    assert len(agent.located) == 1


@both_kinds
def test_the_gradient_of_a_parameter_of_the_loss_itself(reentrant: bool) -> None:
    """It arrives in the middle of a reentrant checkpoint, whose own node has not returned yet."""
    gradients: list[torch.Tensor] = []

    def run() -> None:
        torch.manual_seed(0)
        model, head = nn.Linear(3, 3), nn.Linear(3, 3)

        def loss(output: torch.Tensor) -> torch.Tensor:
            return (head.weight @ output.T * 0).square().sum().sqrt() + head.bias.sum()

        checkpointed(loss, reentrant)(model(torch.randn(4, 3))).backward()
        assert head.bias.grad is not None
        gradients.append(head.bias.grad)

    run()
    with locating() as agent:
        run()
    assert agent.report == BY_ROOT
    assert torch.equal(gradients[0], torch.ones(3)) and torch.equal(gradients[1], torch.ones(3))


@both_kinds
def test_a_head_that_is_a_model_of_its_own(reentrant: bool) -> None:
    """The second program: a module is called in the checkpoint, the fault comes after it."""
    model, head = nn.Linear(5, 4), blank(4, 2)

    def margin(features: torch.Tensor) -> torch.Tensor:
        scores = head(features)
        distance = torch.acos(torch.exp(scores[:, 0]))
        return distance.sum()

    with locating() as agent:
        checkpointed(margin, reentrant)(model(torch.randn(3, 5))).backward()
    assert agent.report[1:] == ("AcosBackward0", "aten.acos.default")
    assert is_located_at(agent, margin, "torch.acos(")


@both_kinds
def test_of_two_checkpoints_the_one_that_made_it(reentrant: bool) -> None:
    def first(output: torch.Tensor) -> torch.Tensor:
        return output.square().mean(-1)

    def second(energy: torch.Tensor) -> torch.Tensor:
        return energy.pow(0.5).sum()

    with locating() as agent:
        energy = checkpointed(first, reentrant)(blank()(torch.randn(4, 3)))
        checkpointed(second, reentrant)(energy).backward()
    assert agent.report[1:] == ("PowBackward0", "aten.pow.Tensor_Scalar")
    assert is_located_at(agent, second, ".pow(0.5)")


@both_kinds
def test_a_gradient_that_came_bad_into_a_checkpoint(reentrant: bool) -> None:
    def features(output: torch.Tensor) -> torch.Tensor:
        return (output * 2.0).square()

    def outside(energy: torch.Tensor) -> torch.Tensor:
        return energy.sum().sqrt()

    with locating() as agent:
        outside(checkpointed(features, reentrant)(blank()(torch.randn(4, 3)))).backward()
    assert agent.report == BY_ROOT
    assert is_located_at(agent, outside, ".sqrt()")


@both_kinds
def test_a_checkpoint_in_a_checkpoint(reentrant: bool) -> None:
    def inner(output: torch.Tensor) -> torch.Tensor:
        return output.square().sum(-1).sqrt()

    def outer(output: torch.Tensor) -> torch.Tensor:
        return checkpointed(inner, reentrant)(output * 3.0).mean()

    with locating() as agent:
        checkpointed(outer, reentrant)(blank()(torch.randn(4, 3))).backward()
    assert agent.report == BY_ROOT
    assert is_located_at(agent, inner, ".sqrt()")


@both_kinds
def test_training_is_the_same_bit_for_bit(reentrant: bool) -> None:
    """What the checkpoint draws, counts and writes is drawn, counted and written as often."""

    def run() -> list[Any]:
        torch.manual_seed(0)
        random.seed(0)
        model, norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        seen: list[Any] = []

        def loss(output: torch.Tensor) -> torch.Tensor:
            noisy = nn.functional.dropout(output, 0.5) * random.random()
            # By the function: no module is called.
            normed = nn.functional.batch_norm(
                noisy, norm.running_mean, norm.running_var, training=True
            )
            return (normed.square() * 0).sum(-1).sqrt().sum()

        for _ in range(3):
            output = model(torch.randn(4, 3))
            lost = checkpoint(loss, output, use_reentrant=reentrant, preserve_rng_state=False)
            lost.backward()
            seen += [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]
            seen += [norm.running_mean.clone(), norm.running_var.clone()]  # type: ignore[union-attr]
            seen += [torch.randn(2), torch.tensor(random.random())]
        return seen

    plain = run()
    with locating() as agent:
        watched = run()
    assert agent.report == BY_ROOT
    for one, other in zip(plain, watched, strict=True):
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


@both_kinds
def test_a_checkpoint_that_raises_when_it_is_computed_again(reentrant: bool) -> None:
    calls = [0]

    def loss(output: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        if calls[0] == 2:
            raise KeyError("only once")
        return output.square().sum()

    model = nn.Linear(3, 3)
    with locating() as agent:
        lost = checkpointed(loss, reentrant)(model(torch.randn(4, 3)))
        with pytest.raises(KeyError, match="only once"):
            lost.backward()
        assert torch._C._len_torch_dispatch_stack() == 0
        assert not is_in_torch_dispatch_mode()
        model(torch.randn(4, 3)).square().sum().sqrt().backward()
    assert not agent.located


@both_kinds
def test_good_gradients_of_a_checkpointed_loss(reentrant: bool) -> None:
    def loss(output: torch.Tensor) -> torch.Tensor:
        allowed = output.masked_fill(output < 1e9, float("-inf"))
        return torch.where(allowed > 0, allowed, output).square().sum().add(1.0).sqrt()

    model = blank()
    with locating() as agent:
        checkpointed(loss, reentrant)(model(torch.randn(4, 3))).backward()
    assert not agent.located
    assert model.weight.grad is not None
