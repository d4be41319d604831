"""Rules on results beyond the limit of their type."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.agent.causes.capture import INF, gradient, stays_finite, why

t = torch.tensor
HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


# Exponentials -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "dtype", "limit", "x"),
    [
        (torch.exp, SINGLE, "above 88.72", 90.0),
        (torch.exp, HALF, "above 11.09", 12.0),
        (torch.exp, BRAIN, "above 88.72", 90.0),
        (torch.exp, DOUBLE, "above 709.8", 800.0),
        (torch.exp2, SINGLE, "above 128", 130.0),
        (torch.exp2, HALF, "above 16", 20.0),
        (torch.expm1, SINGLE, "above 88.72", 90.0),
        (torch.sinh, SINGLE, "beyond ±89.42", -90.0),
        (torch.cosh, HALF, "beyond ±11.78", 12.0),
    ],
)
@pytest.mark.first("overflow of an exponential")
def test_exponentials_name_the_limit_of_the_type(function, dtype, limit: str, x: float) -> None:
    found = why(lambda: function(t([[0.0, 1.0], [x, 2.0]], dtype=dtype)))
    name = str(dtype).removeprefix("torch.")
    assert found.startswith(f"{function.__name__} overflows {name} {limit}: ")
    assert f"at [1, 0] is {x:g}." in found


@pytest.mark.second("overflow of an exponential")
def test_exp_of_logits_in_a_module_in_half_precision() -> None:
    class Scores(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp_() / x.sum()

    found = why(lambda: Scores()(t([5.0, 11.5]).half()))
    assert found.startswith("exp overflows float16 above 11.09: the argument at [1] is 11.5.")
    assert "float32 goes up to 88.72" in found


@pytest.mark.near_miss("overflow of an exponential")
def test_exp_below_its_limit_and_of_infinity() -> None:
    assert stays_finite(lambda: (t([88.7]).exp(), t([11.0]).half().exp()))
    assert "overflows" not in why(lambda: t([INF]).exp(), op="exp")


# Powers -------------------------------------------------------------------------------------------


@pytest.mark.first("overflow of a power")
def test_square_overflows() -> None:
    found = why(lambda: t([1.0, -1e30]).square(), names={"self": "x"})
    assert found.startswith("(-1e+30)^2 is 1e+60, beyond 3.403e+38, the limit of float32: x at [1]")


@pytest.mark.second("overflow of a power")
def test_power_with_a_tensor_of_exponents_in_half_precision() -> None:
    found = why(lambda: 2 ** t([[1.0], [17.0]], dtype=HALF))
    assert found.startswith("2^17 is 131072, beyond 65504, the limit of float16")
    assert "the exponent at [1, 0] is 17" in found and "bfloat16" in found


def test_power_in_inference_mode() -> None:
    def run() -> None:
        with torch.inference_mode():
            t([300.0], dtype=HALF).square()

    assert why(run).startswith("300^2 is 90000, beyond 65504, the limit of float16")


@pytest.mark.near_miss("overflow of a power")
def test_power_at_a_pole_is_no_overflow() -> None:
    assert "beyond" not in why(lambda: t([0.0]) ** -2)
    assert stays_finite(lambda: t([1e19]) ** 2)


# Casts --------------------------------------------------------------------------------------------


@pytest.mark.first("overflow of a cast")
def test_cast_to_half() -> None:
    found = why(lambda: t([[1.0, 1e5]]).half(), names={"self": "hidden"})
    assert found.startswith(
        "The cast from float32 to float16 overflows above 65504: hidden at [0, 1] is 100000."
    )


@pytest.mark.second("overflow of a cast")
def test_casts_by_assignment_and_by_autocast() -> None:
    def assign() -> None:
        cache = torch.zeros(2, 2, dtype=HALF)
        cache[1] = t([7e4, 1.0])

    found = why(assign)
    assert "from float32 to float16" in found and "the source at [0] is 70000" in found

    def run() -> None:
        with torch.autocast("cpu", HALF):
            nn.Linear(2, 2)(t([[1.0, -1e6]]))

    assert "at [0, 1] is -1e+06" in why(run)


def test_cast_from_double_to_float() -> None:
    found = why(lambda: t([1e300], dtype=DOUBLE).float())
    assert found.startswith("The cast from float64 to float32 overflows above 3.403e+38")


def test_cast_of_a_gradient_with_and_without_a_loss_scale() -> None:
    program = gradient(lambda x: x.half().float() * 1e5, [1.0, 2.0])
    found = why(program, phase="backward")
    assert "the gradient at [0] is 100000." in found and "GradScaler" not in found
    found = why(program, phase="backward", scale=65536.0)
    assert "without the loss scale 65536 it is 1.526. | That is how GradScaler finds" in found


def test_cast_that_is_infinite_without_the_scale_as_well() -> None:
    program = gradient(lambda x: x.half().float() * 1e20, [1.0])
    assert "GradScaler" not in why(program, phase="backward", scale=2.0)


@pytest.mark.near_miss("overflow of a cast")
def test_cast_of_what_fits_or_was_infinite() -> None:
    assert stays_finite(lambda: t([65519.0]).half())
    assert "cast" not in why(lambda: t([INF]).half(), op="_to_copy")
    assert stays_finite(lambda: t([1e5]).bfloat16())


# Sums and products --------------------------------------------------------------------------------


@pytest.mark.first("overflow of a sum or product")
def test_residual_addition_in_half_precision() -> None:
    names = {"self": "hidden", "other": "residual"}
    found = why(lambda: t([1.0, 6e4]).half() + t([1.0, 3e4]).half(), names=names)
    assert found.startswith(
        "60000 + 30000 is 90000, beyond 65504, the limit of float16: hidden at [1] is 60000 and "
        "residual at [1] is 30000. | Compute this in bfloat16 or float32"
    )


@pytest.mark.second("overflow of a sum or product")
def test_residual_addition_in_a_block_under_autocast() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2, bias=False)
            nn.init.ones_(self.inner.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x += self.inner(x)
            return x

    def run() -> None:
        with torch.autocast("cpu", HALF), torch.no_grad():
            Block()(t([[24992.0, 40000.0]], dtype=HALF))

    found = why(run)
    assert found.startswith("24992 + 64992 is 89984, beyond 65504"), found
    assert "the first operand at [0, 0] is 24992 and the second operand at [0, 0] is 64992" in found


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (lambda: t([1e30]) * 1e30, "1e+30 · 1e+30 is 1e+60"),
        (lambda: t([1e38]).sub_(t([-1e38]), alpha=4), "1e+38 - 4·-1e+38 is 5e+38"),
        (lambda: torch.addcmul(t([1.0]), t([1e30]), t([1e30]), value=2), "1 + 2·1e+30·1e+30 is 2"),
        (lambda: torch.addcdiv(t([1.0]), t([1e30]), t([1e-30])), "1 + 1e+30/1e-30 is 1e+60"),
        (lambda: torch.lerp(t([3e38]), t([-3e38]), 2.0), "3e+38 + 2·(-3e+38 - 3e+38) is -9e+38"),
        (lambda: torch.hypot(t([3e38]), t([3e38])), "hypot(3e+38, 3e+38) is 4.243e+38"),
        (
            lambda: torch.ops.aten._foreach_mul([t([1.0]), t([1e30])], 1e20),
            "1e+30 · 1e+20 is 1e+50",
        ),
        (lambda: torch.rsub(t([-3e38]), t([3e38])), "3e+38 - -3e+38 is 6e+38"),
        (lambda: t([40000.0], dtype=HALF) * 2, "40000 · 2 is 80000, beyond 65504"),
        (lambda: t([1e300], dtype=DOUBLE) * 1e300, "1e+300 · 1e+300 is beyond 1.798e+308"),
    ],
)
def test_each_sum_and_product_is_written_out(program, sentence: str) -> None:
    found = why(program)
    assert found.startswith(sentence), found
    assert "the limit of" in found


@pytest.mark.near_miss("overflow of a sum or product")
def test_sums_that_fit_or_were_infinite_before() -> None:
    assert stays_finite(lambda: t([6e4]).half() + t([5e3]).half())
    assert stays_finite(lambda: t([6e4]).bfloat16() + t([3e4]).bfloat16())
    assert "beyond" not in why(lambda: t([INF]) + 1, op="add")


# erfcx --------------------------------------------------------------------------------------------


@pytest.mark.first("overflow of erfcx")
def test_erfcx_of_negative_numbers() -> None:
    found = why(lambda: torch.special.erfcx(t([1.0, -50.0])))
    assert found.startswith("erfcx grows like exp(x²) below 0 and overflows float32")
    assert "at [1] is -50" in found


@pytest.mark.second("overflow of erfcx")
def test_erfcx_of_a_loss_in_double() -> None:
    x = t([[0.0], [-30.0]], dtype=DOUBLE)
    assert "at [1, 0] is -30" in why(lambda: torch.sum(torch.special.erfcx(x).log()))


@pytest.mark.near_miss("overflow of erfcx")
def test_erfcx_of_positive_numbers() -> None:
    assert stays_finite(lambda: torch.special.erfcx(t([50.0, -2.0])))


# Matrix products ----------------------------------------------------------------------------------


@pytest.mark.first("overflow of a matrix product")
def test_linear_in_half_precision() -> None:
    x, w = torch.full((2, 3), 300.0, dtype=HALF), torch.full((4, 3), 300.0, dtype=HALF)
    found = why(lambda: functional.linear(x, w, torch.ones(4, dtype=HALF)), names={"mat1": "x"})
    assert found.startswith(
        "The sum of 3 products, x at [0, :] times the second matrix at [:, 0], is 270001, beyond "
        "65504, the limit of float16; the largest of them is 90000."
    )


@pytest.mark.second("overflow of a matrix product")
def test_one_element_of_a_batched_product_under_autocast() -> None:
    def run() -> None:
        queries, keys = torch.ones(2, 3, 4), torch.ones(2, 4, 5)
        queries[1, 2], keys[1, :, 3] = 200.0, 100.0
        with torch.autocast("cpu", HALF):
            queries @ keys

    found = why(run)
    assert "first matrix at [1, 2, :] times the second matrix at [1, :, 3], is 80000" in found


@pytest.mark.parametrize(
    ("program", "where"),
    [
        (lambda x: x @ x[0], "[0, :] times the vector at [:]"),
        (lambda x: torch.dot(x[0], x[1]), "the first vector at [:] times the second vector at [:]"),
        (lambda x: torch.baddbmm(x[None], x[None], x[None]), "[0, 0, :] times"),
        (lambda x: torch.addmv(x[0], x, x[0]), "the matrix at [0, :] times the vector at [:]"),
        (lambda x: torch.einsum("ij,jk->ik", x, x), "[0, 0, :] times"),
    ],
)
def test_other_products(program, where: str) -> None:
    found = why(lambda: program(torch.full((2, 2), 200.0, dtype=HALF)))
    assert where in found and "80" in found, found


def test_linear_in_inference_mode() -> None:
    def run() -> None:
        with torch.inference_mode():
            functional.linear(torch.full((1, 2), 1e20), torch.full((3, 2), 1e20))

    found = why(run)
    assert "the input at [0, :] times the weight at [0, :], is 2e+40" in found


@pytest.mark.near_miss("overflow of a matrix product")
def test_products_that_fit() -> None:
    assert stays_finite(
        lambda: torch.full((2, 3), 100.0, dtype=HALF) @ torch.ones(3, 2, dtype=HALF)
    )
    assert "beyond" not in why(lambda: t([[INF, 1.0]]) @ t([[1.0], [1.0]]), op="mm")


@pytest.mark.first("0·inf in a matrix product")
def test_0_times_inf_in_a_product() -> None:
    found = why(lambda: t([[0.5, 0.5], [1.0, 0.0]]) @ t([[1.0], [INF]]))
    assert found.startswith("0·inf is NaN: term 1 of the first matrix at [1, :] times the second")
    assert "is 0·inf." in found


@pytest.mark.second("0·inf in a matrix product")
def test_inf_minus_inf_in_attention_of_values_in_half_precision() -> None:
    weights, values = torch.full((1, 2, 2), 0.5, dtype=BRAIN), torch.ones(1, 2, 3, dtype=BRAIN)
    values[0, 0, 1], values[0, 1, 1] = INF, -INF
    found = why(lambda: torch.bmm(weights, values))
    assert found.startswith("inf - inf is NaN: of the terms of the first matrix at [0, 0, :] times")
    assert "1 is inf and 1 is -inf" in found


@pytest.mark.near_miss("0·inf in a matrix product")
def test_nan_that_a_product_hands_on() -> None:
    found = why(lambda: t([[float("nan"), 0.0]]) @ t([[1.0], [INF]]), op="mm")
    assert "term" not in found


# Convolutions -------------------------------------------------------------------------------------


@pytest.mark.first("overflow of a convolution")
def test_convolution_in_half_precision() -> None:
    x, w = torch.full((1, 2, 3, 3), 300.0, dtype=HALF), torch.full((4, 1, 2, 2), 300.0, dtype=HALF)
    x[0, 0] = 0
    found = why(lambda: functional.conv2d(x, w, groups=2, padding=1))
    assert found.startswith(
        "The convolution of the input with the weight is 90000, beyond 65504, the limit of "
        "float16, at [0, 2, 0, 0]."
    )


@pytest.mark.second("overflow of a convolution")
def test_convolution_of_a_signal_in_a_module() -> None:
    layer = nn.Conv1d(2, 3, 3, stride=2, dilation=2)
    with torch.no_grad():
        layer.weight.fill_(1e20)
    found = why(lambda: layer(torch.full((2, 2, 9), 1e20)))
    assert "is 6e+40, beyond 3.403e+38" in found and "at [0, 0, 0]." in found


@pytest.mark.near_miss("overflow of a convolution")
def test_convolution_of_what_was_infinite() -> None:
    x = torch.ones(1, 1, 4)
    x[0, 0, 1] = INF
    assert "convolution" not in why(
        lambda: functional.conv1d(x, torch.ones(1, 1, 2)), op="convolution"
    )
    assert stays_finite(lambda: functional.conv1d(x[..., 2:], torch.ones(1, 1, 2)))
