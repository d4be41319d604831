"""Rules on optimizer steps, gradient clipping and loss scaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.agent.causes.capture import INF, NAN, Program, stays_finite, why

t = torch.tensor
HALF = torch.float16


def step(
    kind: Any, gradients: Sequence[float] = (1.0, 0.0, 1.0), dtype: Any = HALF, **options: Any
) -> Program:
    """One step of an optimizer."""

    def run() -> None:
        weight = nn.Parameter(torch.ones(3, dtype=dtype))
        optimizer = kind([weight], **options)
        weight.grad = torch.tensor(gradients, dtype=dtype)
        optimizer.step()

    return run


def clip(*gradients: Sequence[float], **options: Any) -> Program:
    def run() -> None:
        weights = [nn.Parameter(torch.ones(len(gradient))) for gradient in gradients]
        for weight, gradient in zip(weights, gradients):
            weight.grad = torch.tensor(gradient)
        nn.utils.clip_grad_norm_(weights, 1.0, **options)

    return run


# eps ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.first("eps of the optimizer is 0")
def test_adam_s_eps_in_float16(foreach: bool) -> None:
    found = why(step(torch.optim.Adam, foreach=foreach), phase="update")
    assert found.startswith(
        "0/0 is NaN: the gradients at [1] were 0 so far, and what the optimizer"
    )
    assert "since eps is 0 in float16. | Keep the parameters in float32" in found


@pytest.mark.parametrize("kind", ["AdamW", "Adamax", "NAdam", "RMSprop", "Adagrad"])
@pytest.mark.second("eps of the optimizer is 0")
def test_eps_of_other_optimizers_in_a_model(kind: str) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).half()

    def run() -> None:
        optimizer = getattr(torch.optim, kind)(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()

    assert "since eps is 0 in float16" in why(run, phase="update")


def test_eps_0_in_float32_and_squares_that_underflow() -> None:
    found = why(step(torch.optim.Adam, dtype=torch.float32, eps=0.0), phase="update")
    assert "since eps is 0, or far too small. | Pass an eps such as 1e-8." in found
    found = why(step(torch.optim.RMSprop, [1e-4, 1.0, 1.0]), phase="update")
    assert found.startswith("0.0001/0 makes -inf: the squared gradients at [0] round to 0")


@pytest.mark.near_miss("eps of the optimizer is 0")
def test_eps_that_is_not_0_or_no_optimizer() -> None:
    assert stays_finite(step(torch.optim.Adam, eps=1e-4))
    assert stays_finite(step(torch.optim.Adam, dtype=torch.bfloat16))
    found = why(lambda: torch.addcdiv(t([1.0]), t([0.0]), t([0.0])))
    assert "optimizer" not in found and found.startswith("0/0 makes NaN: the dividend at [0] is 0")


def test_squares_of_gradients_that_overflow() -> None:
    found = why(
        step(torch.optim.Adam, [1e25, 1.0, 1.0], torch.float32, foreach=False), phase="update"
    )
    assert "1e+25·1e+25 is 1e+47, beyond 3.403e+38, the limit of float32" in found


# Clipping -----------------------------------------------------------------------------------------


@pytest.mark.first("clipping by an infinite norm")
def test_clipping_an_infinite_gradient() -> None:
    found = why(clip([1.0], [0.5, INF]), op="_foreach_mul_", phase="update")
    assert found.startswith("Clipping multiplies an infinite gradient by 0: the total norm is inf")
    assert "the gradient at [1] is inf" in found and "error_if_nonfinite" in found


@pytest.mark.second("clipping by an infinite norm")
def test_clipping_one_by_one_in_a_model() -> None:
    model = nn.Linear(2, 2)

    def run() -> None:
        (model(torch.ones(1, 2)) * t([1.0, INF])).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0, foreach=False)

    found = why(run, op="mul_", phase="update")
    assert "the gradient at [1, 0] is inf, of which 0·inf makes NaN" in found


def test_clipping_by_a_nan() -> None:
    found = why(clip([0.5, 2.0], [NAN]), op="_foreach_mul_", phase="update")
    assert found.startswith("Clipping multiplies all gradients by NaN, since the total norm is NaN")


@pytest.mark.near_miss("clipping by an infinite norm")
def test_clipping_finite_gradients_and_products_elsewhere() -> None:
    assert stays_finite(clip([1e10, 1.0]))
    assert "Clipping" not in why(lambda: t([1.0, INF]).mul_(t(0.0)))


def test_products_of_an_optimizer_are_no_clipping() -> None:
    average = t([1.0, INF])
    found = why(lambda: average.mul_(0.0), phase="update")
    assert found.startswith("0·inf is NaN: the first operand at [1] is inf")


# Loss scale ---------------------------------------------------------------------------------------


def scaled(scale: float, factor: float) -> Program:
    def run() -> None:
        weight = nn.Parameter(torch.ones(1, 3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        with torch.autocast("cpu", HALF):
            output = functional.linear(torch.full((2, 3), 10.0), weight)
        scaler.scale((output.float() * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    return run


UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"


@pytest.mark.first("loss scale")
def test_loss_scale_that_is_too_large() -> None:
    program = scaled(2.0**20, 1.0)
    found = why(program, op=UNSCALE)
    assert found.startswith("The gradient at [0, 0] is inf with the loss scale 1.049e+06.")
    assert "without the loss scale 1.049e+06 it is 1." in why(program, scale=2.0**20)


@pytest.mark.second("loss scale")
def test_loss_scale_by_hand() -> None:
    gradients, found_inf = [torch.ones(2), t([[1.0, INF]])], torch.zeros(1)
    found = why(
        lambda: torch.ops.aten._amp_foreach_non_finite_check_and_unscale_(
            gradients, found_inf, t(1 / 1024)
        ),
        op=UNSCALE,
    )
    assert found.startswith("The gradient at [0, 1] is inf with the loss scale 1024.")


def test_loss_scale_that_is_not_the_reason() -> None:
    found = why(scaled(1.0, 1e6), op=UNSCALE)
    assert "it is not the scale that makes it so" in found


@pytest.mark.near_miss("loss scale")
def test_loss_scale_that_fits() -> None:
    assert stays_finite(scaled(1024.0, 1.0))
