"""Rules on functions outside of their domain."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tensorpoint.agent.causes import explain
from tests.unit.agent.causes.capture import INF, captured, stays_finite, why

t = torch.tensor


class Entropy(nn.Module):
    """Log of a probability that underflows in half precision."""

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return -torch.log10(logits.softmax(-1)).mean()


# A function's domain ------------------------------------------------------------------------------


@pytest.mark.first("domain of a function")
def test_log_of_0_names_the_element() -> None:
    found = why(lambda: torch.log2(t([[1.0, 4.0], [2.0, 0.0]])), names={"self": "p"})
    assert found.startswith("log2 of 0 is -inf: p at [1, 1] is 0. | Clamp the argument")
    assert "log_softmax" in found


def test_log_of_a_softmax_that_underflows_in_a_module() -> None:
    found = why(lambda: Entropy()(t([[0.0, 0.0, 0.0], [30.0, 30.0, 0.0]]).half()))
    assert "log10 of 0 is -inf: the argument at [1, 2] is 0, to which float16 has rounded" in found


def test_log_of_a_0_in_float16_that_may_have_been_a_small_number() -> None:
    found = why(t([1.0, 0.0]).half().log)
    assert "the argument at [1] is 0 (float16 has nothing between 0 and 5.96e-08)" in found


def test_log_of_small_and_of_infinite_numbers_is_no_matter_of_the_domain() -> None:
    assert stays_finite(lambda: t([1e-38, 1.0]).log())
    assert why(lambda: t([INF, 1.0]).log(), op="log").startswith("The argument was bad before")


@pytest.mark.parametrize(
    ("function", "x", "sentence"),
    [
        (torch.log, -0.25, "log of -0.25 is NaN, since it is for numbers above 0"),
        (torch.log1p, -1.0, "log1p of -1 is -inf"),
        (torch.log1p, -3.0, "log1p of -3 is NaN, since it is for numbers above -1"),
        (torch.sqrt, -2.5, "sqrt of -2.5 is NaN, since it is for numbers from 0 on"),
        (torch.rsqrt, 0.0, "rsqrt of 0 is inf"),
        (torch.rsqrt, -1.0, "rsqrt of -1 is NaN"),
        (torch.reciprocal, 0.0, "1/x of 0 is inf"),
        (torch.arccos, 1.5, "acos of 1.5 is NaN, since it is for numbers from -1 to 1"),
        (torch.asin, -1.5, "asin of -1.5 is NaN"),
        (torch.acosh, 0.5, "acosh of 0.5 is NaN, since it is for numbers from 1 on"),
        (torch.atanh, -1.0, "atanh of -1 is -inf"),
        (torch.atanh, 2.0, "atanh of 2 is NaN"),
        (torch.erfinv, 1.0, "erfinv of 1 is inf"),
        (torch.erfinv, 1.25, "erfinv of 1.25 is NaN"),
        (torch.logit, 1.0, "logit of 1 is inf"),
        (torch.logit, 1.5, "logit of 1.5 is NaN, since it is for numbers between 0 and 1"),
        (torch.special.ndtri, 0.0, "ndtri of 0 is -inf"),
        (torch.lgamma, -1.0, "lgamma of -1 is inf"),
        (torch.digamma, 0.0, "digamma of 0 is -inf"),
        (torch.digamma, -2.0, "digamma of -2 is NaN"),
        (torch.sin, INF, "sin of inf is NaN, since it is for finite numbers"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_each_function_at_its_border(function, x: float, sentence: str, dtype) -> None:
    if dtype is torch.bfloat16 and function is torch.special.ndtri:
        return  # torch has none
    values = torch.full((2, 1, 3), 0.5 if function is not torch.acosh else 1.5, dtype=dtype)
    values[1, 0, 2] = x
    found = why(lambda: function(values))
    assert found.startswith(sentence), found
    assert f"the argument at [1, 0, 2] is {x:g}." in found


@pytest.mark.second("domain of a function")
def test_in_place_and_lists_are_the_same_operation() -> None:
    assert why(lambda: t([4.0, -4.0]).sqrt_()).startswith("sqrt of -4 is NaN")
    found = why(lambda: torch.ops.aten._foreach_sqrt_([torch.ones(2), t([[1.0, -9.0]])]))
    assert "sqrt of -9 is NaN" in found and "at [0, 1] is -9" in found


def test_a_scalar_has_no_index() -> None:
    assert "the argument is -1." in why(lambda: t(-1.0).sqrt())


def test_polygamma_at_a_pole_and_beside_it() -> None:
    assert why(lambda: torch.polygamma(1, t([2.0, 0.0]))).startswith("polygamma of 0 is inf")
    assert stays_finite(lambda: torch.polygamma(1, t([0.5, 0.25])))


@pytest.mark.parametrize(
    "program",
    [
        lambda: t([0.0, -1.0, 1.0]).acos(),
        lambda: t([0.0, 4.0]).sqrt(),
        lambda: torch.logit(t([0.0, 1.0]), eps=1e-6),
        lambda: t([0.999]).atanh(),
    ],
)
@pytest.mark.near_miss("domain of a function")
def test_what_the_domain_includes_makes_nothing_bad(program) -> None:
    assert stays_finite(program)


def test_complex_numbers_are_let_be() -> None:
    assert explain(captured(lambda: t([INF + 0j]) * 2, op="mul")) is None


# Powers -------------------------------------------------------------------------------------------


@pytest.mark.first("power of 0 or a negative")
def test_power_of_a_negative_number() -> None:
    found = why(lambda: t([1.0, -2.0]) ** 0.5, names={"self": "x"})
    assert found.startswith("A negative number has no power 0.5: x at [1] is -2")


@pytest.mark.second("power of 0 or a negative")
def test_power_of_0_in_half_precision_with_a_tensor_of_exponents() -> None:
    base, exponent = t([[2.0], [0.0]]).half(), t([1.0, -1.5]).half()
    found = why(lambda: torch.pow(base, exponent))
    assert found.startswith("0 to the power -1.5 is inf: the base at [1, 0] is 0")
    assert "the exponent at [1] is -1.5 (float16 has nothing" in found


@pytest.mark.near_miss("power of 0 or a negative")
def test_powers_that_are_defined() -> None:
    assert stays_finite(lambda: (t([-2.0, 0.0]) ** 3, t([0.0, 4.0]) ** 0.5, t([-2.0]) ** -2))


# xlogy --------------------------------------------------------------------------------------------


@pytest.mark.first("xlogy at the border")
def test_xlogy_of_0() -> None:
    found = why(lambda: torch.xlogy(t([0.5, 1.0]), t([1.0, 0.0])))
    assert found.startswith("x·log(y) is -inf where the logarithm is of 0 and x is not")
    assert "the first operand at [1] is 1 and the second operand at [1] is 0" in found


@pytest.mark.second("xlogy at the border")
def test_xlog1py_of_a_negative_number_in_a_loss() -> None:
    def loss() -> torch.Tensor:
        p = t([[0.5, 1.5]], dtype=torch.float64)
        return torch.special.xlog1py(1 - p.round(), -p).sum()

    found = why(loss)
    assert found.startswith("x·log(1 + y) has no value where the logarithm is of a negative number")
    assert "the second operand at [0, 1] is -1.5" in found


@pytest.mark.near_miss("xlogy at the border")
def test_xlogy_of_0_and_0_is_0() -> None:
    assert stays_finite(lambda: torch.xlogy(t([0.0]), t([0.0])))
    assert stays_finite(lambda: functional.binary_cross_entropy(t([0.0, 1.0]), t([1.0, 0.0])))
    assert stays_finite(
        lambda: functional.binary_cross_entropy_with_logits(t([1000.0, -1000.0]), t([0.0, 1.0]))
    )
