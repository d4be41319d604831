"""Rules on backward passes: infinite slopes, norms by hand, double where."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from tensorpoint.agent.causes import explain
from tests.unit.agent.causes.capture import INF, captured, gradient, said, stays_finite, why

t = torch.tensor


def without_forward(program, op: str | None = None, skip: int = 0) -> str:
    """The same where the forward operation isn't known, as when it ran before anyone looked."""
    operation = captured(program, op=op, phase="backward", skip=skip)
    return said(explain(replace(operation, forward=None)))


# Infinite slopes ----------------------------------------------------------------------------------

SLOPES = [
    (torch.sqrt, 0.0, "sqrt at 0"),
    (torch.acos, 1.0, "acos at ±1"),
    (torch.acos, -1.0, "acos at ±1"),
    (torch.asin, -1.0, "asin at ±1"),
    (torch.acosh, 1.0, "acosh at 1"),
    (torch.special.entr, 0.0, "entr at 0"),
    (lambda x: x**0.5, 0.0, "the power at 0"),
]


@pytest.mark.parametrize(("function", "x", "where"), SLOPES)
@pytest.mark.first("infinite slope")
def test_slope_at_the_border(function, x: float, where: str) -> None:
    good = 0.5 if function is not torch.acosh else 2.0
    found = why(gradient(function, [[good, x]]))
    assert found.startswith(f"The slope of {where} is infinite: the "), found
    assert f"at [0, 1] is {x:g}" in found


@pytest.mark.parametrize(("function", "x", "where"), SLOPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_slope_at_the_border_in_a_module_whose_forward_nobody_saw(
    function, x: float, where: str, dtype
) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(
                t([x, 0.5 if x != 1 or function is torch.acos else 2.0]).to(dtype)
            )

        def forward(self, scale: float) -> torch.Tensor:
            return (function(self.weight) * scale).mean()

    layer = Layer()
    found = without_forward(lambda: layer(3.0).backward())
    assert found.startswith(f"The slope of {where} is infinite: there it is at [0]."), found


@pytest.mark.parametrize(("function", "x", "where"), SLOPES)
@pytest.mark.near_miss("infinite slope")
def test_slope_beside_the_border(function, x: float, where: str) -> None:
    beside = {0.0: 1e-6, 1.0: 1 - 1e-6, -1.0: -1 + 1e-6}[x]
    beside = 1 + 1e-6 if function is torch.acosh else beside
    assert stays_finite(gradient(function, [beside]))


def test_logarithm_of_0_that_reaches_the_loss() -> None:
    found = why(gradient(lambda x: x.softmax(0).log(), [0.0, 200.0]), phase="backward")
    assert found.startswith("The slope of log at 0 is infinite: the argument at [0] is 0.")
    assert "log_softmax" in found


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (
            gradient(lambda x: torch.hypot(x, x), [1.0, 0.0]),
            "hypot at (0, 0) is infinite: its value at [1] is 0",
        ),
        (gradient(lambda x: x.std(), [1.0, 1.0]), "std at 0 is infinite: its value is 0"),
        (gradient(torch.norm, [0.0, 0.0]), "the norm at 0 is infinite: there it is at [0]"),
        (
            lambda: torch.dist(torch.zeros(2, requires_grad=True), torch.zeros(2)).backward(),
            "the distance at 0 is infinite: there it is at [0]",
        ),
        (
            lambda: (
                functional.pairwise_distance(
                    torch.zeros(2, 3, requires_grad=True), torch.zeros(2, 3), eps=0
                )
                .sum()
                .backward()
            ),
            "the norm at 0 is infinite: there it is at [0, 0]",
        ),
        (
            gradient(lambda x: torch.xlogy(x, x), [1.0, 0.0]),
            "xlogy(x, y) at y = 0 is infinite: the first operand at [1] is 0 and the second",
        ),
    ],
)
@pytest.mark.second("infinite slope")
def test_slopes_of_norms_and_of_two_arguments(program, sentence: str) -> None:
    found = why(program, phase="backward")
    assert f"The slope of {sentence}" in found, found


def test_distances_whose_gradient_torch_defines() -> None:
    zeros = torch.zeros(2, 3, requires_grad=True)
    assert stays_finite(lambda: torch.cdist(zeros, torch.zeros(2, 3)).sum().backward())
    assert stays_finite(gradient(torch.abs, [0.0]))


# Norm by hand -------------------------------------------------------------------------------------


@pytest.mark.first("norm by hand at 0")
def test_norm_by_hand_at_0() -> None:
    program = gradient(lambda x: (x**2).sum().sqrt(), [0.0, 0.0])
    found = why(program)
    assert found.startswith("The slope of sqrt at 0 is infinite: the argument is 0.")
    assert "torch.linalg.vector_norm" in found
    found = why(program, op="mul")
    assert found.startswith("The root of a square or product has no gradient at 0")
    assert "that of what is under it at [0] is 0, and 0·inf is NaN" in found


@pytest.mark.second("norm by hand at 0")
def test_norm_by_hand_as_a_root_of_a_mean_in_a_module() -> None:
    class RootMeanSquare(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / (1 + (x * x).mean(-1, keepdim=True) ** 0.5)

    x = torch.ones(2, 3, dtype=torch.float64)
    x[1] = 0
    x.requires_grad_()
    program = lambda: RootMeanSquare()(x).sum().backward()  # noqa: E731
    found = [why(program, op="mul", phase="backward", skip=skip) for skip in range(2)]
    assert any(
        "that of what is under it at [1, 0] is 0, and 0·inf" in sentence for sentence in found
    ), found


@pytest.mark.near_miss("norm by hand at 0")
def test_infinite_gradient_of_something_else_at_0() -> None:
    program = gradient(lambda x: ((x * x).sum() + 1).sub(1).log().exp() * x.sum(), [0.0, 1e-30])
    found = why(program, op="mul", phase="backward", skip=0)
    assert "square or product" not in found
    assert stays_finite(gradient(lambda x: ((x * x).sum() + 1e-12).sqrt(), [0.0, 0.0]))


# Double where -------------------------------------------------------------------------------------


@pytest.mark.first("double where")
def test_double_where_of_exp() -> None:
    program = gradient(lambda x: torch.where(x > 100, x, x.exp()), [1.0, 1000.0])
    found = why(program, op="mul", phase="backward")
    assert found.startswith("exp made inf in the forward at [1] (the argument at [1] is 1000), and")
    assert "in which 0 times inf is NaN. | Make the argument harmless before" in found


DROPPED = [
    (torch.log, 0.0, "log made -inf", None),
    (torch.log2, 0.0, "log2 made -inf", None),
    (torch.log1p, -1.0, "log1p made -inf", None),
    (torch.rsqrt, 0.0, "rsqrt made inf", None),
    (torch.reciprocal, 0.0, "reciprocal made inf", "mul"),
    (torch.atanh, 1.0, "atanh made inf", None),
    (torch.erfinv, 1.0, "erfinv made inf", None),
    (torch.logit, 0.0, "logit made -inf", None),
    (torch.expm1, 100.0, "expm1 made inf", None),
    (torch.cosh, 100.0, "cosh made inf", None),
    (lambda x: (x + 1) / x, 0.0, "div made inf", None),
    (torch.sqrt, -1.0, "sqrt made NaN", "div"),
]


@pytest.mark.parametrize(("function", "x", "sentence", "op"), DROPPED)
@pytest.mark.second("double where")
def test_value_that_a_mask_drops(function, x: float, sentence: str, op: str | None) -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor, drop: torch.Tensor) -> torch.Tensor:
            return function(x).masked_fill(drop, 0.0)

    values = t([[0.5], [x]], requires_grad=True)
    program = lambda: Masked()(values, t([[False], [True]])).sum().backward()  # noqa: E731
    found = why(program, op=op, phase="backward")
    assert f"{sentence} in the forward at [1, 0]" in found, found
    assert "torch.where(ok, x, 1.0)" in found


def test_root_whose_value_is_dropped() -> None:
    program = gradient(lambda x: torch.where(x > 0, x.sqrt(), 0.0), [0.0, 1.0])
    for found in (why(program), without_forward(program)):
        assert found.startswith(
            "The slope of sqrt is infinite at [0], and the gradient that arrives there is 0"
        ), found
        assert "torch.where(ok, x, 1.0)" in found


@pytest.mark.near_miss("double where")
def test_value_that_is_not_dropped_is_no_double_where() -> None:
    found = why(gradient(lambda x: x * x * x, [1e20, 1.0]), op="mul", phase="backward", skip=1)
    assert "where" not in found
    found = why(gradient(lambda x: x.exp(), [100.0]), op="mul", phase="backward")
    assert "in the forward" not in found
    safe = gradient(lambda x: torch.where(x > 0, torch.where(x > 0, x, 1.0).log(), 0.0), [0.0, 2.0])
    assert stays_finite(safe)


# Softmax ------------------------------------------------------------------------------------------


@pytest.mark.first("log of a softmax of 0")
def test_log_of_a_softmax_that_is_0() -> None:
    program = gradient(lambda x: functional.softmax(x, 0).log(), [0.0, 200.0])
    found = why(program, op="_softmax_backward_data")
    assert found.startswith("The softmax at [0] is 0, where the slope of the logarithm is infinite")
    assert "log_softmax" in found


@pytest.mark.second("log of a softmax of 0")
def test_cross_entropy_by_hand_in_half_precision() -> None:
    class Head(nn.Module):
        def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return -x.softmax(-1).gather(1, target[:, None]).log2().mean()

    x = t([[1.0, 1.0], [30.0, 0.0]], dtype=torch.float16, requires_grad=True)
    found = why(lambda: Head()(x, t([0, 1])).backward(), op="_softmax_backward_data")
    assert found.startswith("The softmax at [1, 1] is 0, where the slope of the logarithm"), found


def test_softmax_that_gets_an_infinite_gradient_from_elsewhere() -> None:
    found = why(gradient(lambda x: x.softmax(0) * INF, [0.0, 1.0]), op="_softmax_backward_data")
    assert found.startswith("The gradient that reaches the softmax is inf at [0]")
    assert "logarithm" not in found


@pytest.mark.near_miss("log of a softmax of 0")
def test_softmax_whose_gradient_is_finite() -> None:
    assert stays_finite(gradient(lambda x: x.log_softmax(0), [0.0, 200.0]))
    assert stays_finite(gradient(lambda x: x.softmax(0).clamp_min(1e-30).log(), [0.0, 200.0]))
