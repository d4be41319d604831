"""Rules on numbers that a half-precision type rounds to 0."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.unit.agent.causes.capture import NAN, why

t = torch.tensor
HALF, BRAIN = torch.float16, torch.bfloat16


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (lambda: t([1.0, -20.0]).half().exp().log(), "exp(-20) = 2.061e-09. | Stay with"),
        (lambda: t([-110.0]).bfloat16().exp().log2(), "exp(-110) = 1.689e-48. | Stay with"),
        (lambda: torch.exp2(t([-30.0]).half()).log10(), "exp2(-30) = 9.313e-10. | Stay with"),
        (lambda: t([-20.0]).half().sigmoid().log(), "sigmoid(-20) = 2.061e-09. | Stay with"),
        (
            lambda: t([[0.0, 20.0]]).half().softmax(-1).log(),
            "the softmax of 0 beside 20 = 2.061e-09. | Stay with",
        ),
        (lambda: 1 / (t([1e-5]).half() * 1e-4), "1.001e-05 · 0.0001 = 1.001e-09. | Compute"),
        (lambda: torch.rsqrt(t([2e-5]).half() / 4096), "2.003e-05 / 4096 = 4.889e-09. | Compute"),
        (lambda: t([1.0]).half() / (t([0.0]).half() + 1e-8), "0 + 1e-08 = 1e-08. | Compute"),
        (lambda: (t([1e-5]).half() ** 2) ** -0.5, "1.001e-05^2 = 1.003e-10. | Compute"),
        (lambda: t([-1e-5]).half().square().log(), "(-1.001e-05)^2 = 1.003e-10. | Compute"),
        (lambda: t([2e-8]).half().reciprocal(), "a float32 = 2e-08. | Compute this in bfloat16"),
        (
            lambda: torch.xlogy(
                torch.ones(2, 1).half(),
                torch.full((2, 2), 1e-5).half().mm(torch.full((2, 1), 1e-5).half()),
            ),
            "a sum of 2 products = 2.005e-10. | Compute",
        ),
        (
            lambda: t([3e-30]).bfloat16().mul_(1e-20).log_(),
            "2.995e-30 · 1e-20 = 2.995e-50. | Compute this in float64",
        ),
    ],
)
@pytest.mark.first("a number that rounds to 0")
def test_what_was_rounded_is_written_out(program, sentence: str) -> None:
    found = why(program)
    assert "has rounded " + sentence in found, found


@pytest.mark.second("a number that rounds to 0")
def test_a_probability_of_a_module_in_half_precision() -> None:
    class Entropy(nn.Module):
        def forward(self, logits: torch.Tensor) -> torch.Tensor:
            probs = logits.softmax(-1)
            return -(probs * probs.log()).sum(-1)

    found = why(lambda: Entropy()(t([[0.0, 1.0, 2.0], [30.0, 3.0, 0.0]]).half()))
    assert found.startswith(
        "log of 0 is -inf: the argument at [1, 1] is 0, to which float16 has rounded the softmax "
        "of 3 beside 30 = 1.88e-12."
    )


@pytest.mark.parametrize(
    "program",
    [
        lambda: t([1.0, 0.0]).half().log(),
        lambda: torch.log(t([1.0, 0.0]).half() * 0.5),
        lambda: 1 / (t([2.0]).half() - t([2.0]).half()),
        lambda: t([-20.0, -200.0]).exp().log(),  # of float32
        lambda: t([[0.0, -float("inf")]]).half().softmax(-1).log(),
        lambda: t([1.0, -1.0]).half().relu().log(),
    ],
)
@pytest.mark.near_miss("a number that rounds to 0")
def test_of_a_0_that_is_one_nothing_is_said(program) -> None:
    found = why(program)
    assert found and "rounded" not in found, found


def test_of_a_nan_that_is_divided_nothing_is_said() -> None:
    found = why(lambda: t([NAN]).half() / (t([1e-5]).half() * 1e-5), op="div")
    assert "rounded" not in found
