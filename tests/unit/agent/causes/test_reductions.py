"""Rules on sums, means, norms, products and variances."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.unit.agent.causes.capture import INF, NAN, stays_finite, why

t = torch.tensor
HALF = torch.float16


# Variances ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.first("variance of one element")
def test_std_of_one_element() -> None:
    found = why(lambda: t([3.0]).std(), names={"self": "rewards"})
    assert found.startswith("The variance of 1 element (rewards) with correction 1 divides by 0.")


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.second("variance of one element")
def test_variance_along_a_dimension_of_size_1_in_half_precision() -> None:
    class Standardise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            variance, mean = torch.var_mean(x, dim=0, keepdim=True)
            return (x - mean) / variance.sqrt()

    found = why(lambda: Standardise()(torch.ones(1, 4, dtype=torch.bfloat16)))
    assert "The variance of 1 element (the argument at [:, 0]) with correction 1" in found
    found = why(lambda: torch.ones(2, 2).var(1, correction=2))
    assert "The variance of 2 elements (the argument at [0, :]) with correction 2" in found


@pytest.mark.near_miss("variance of one element")
def test_variance_without_correction_or_of_two() -> None:
    assert stays_finite(lambda: (t([1.0]).var(correction=0), t([1.0, 2.0]).std()))
    assert "divides by 0" not in why(lambda: t([1.0, NAN]).std(), op="std")


@pytest.mark.first("overflow of a variance")
def test_variance_that_overflows() -> None:
    found = why(lambda: t([3e30, -3e30, 3e30, 3e30]).var())
    assert found.startswith(
        "The squares of the deviations in the argument add up to 2.7e+61, beyond"
    )


@pytest.mark.second("overflow of a variance")
def test_variance_of_a_row_that_overflows() -> None:
    x = torch.ones(2, 4)
    x[1] = t([1e25, -1e25, 0.0, 0.0])
    found = why(lambda: torch.var_mean(x, 1, correction=0))
    assert "in the argument at [1, :] add up to 2e+50, beyond 3.403e+38" in found


@pytest.mark.near_miss("overflow of a variance")
def test_variance_of_large_numbers_that_are_close() -> None:
    assert stays_finite(lambda: t([1e30, 1e30], dtype=torch.float64).var())
    assert "deviations" not in why(lambda: t([INF, 1.0]).var(), op="var")


# Means and sums -----------------------------------------------------------------------------------


@pytest.mark.first("mean of nothing")
def test_mean_of_nothing() -> None:
    found = why(lambda: torch.ones(3, 0).mean(1), names={"self": "selected"})
    assert found.startswith("The mean of no elements is NaN: selected has the shape [3, 0].")


@pytest.mark.second("mean of nothing")
def test_mean_of_an_empty_selection_under_autocast() -> None:
    def run() -> None:
        losses, keep = torch.ones(4), torch.zeros(4, dtype=torch.bool)
        with torch.autocast("cpu", torch.bfloat16):
            losses[keep].mean()

    assert "has the shape [0]" in why(run)
    assert why(lambda: torch.ones(0).median()).startswith("The median of no elements is NaN")


@pytest.mark.near_miss("mean of nothing")
def test_sum_of_nothing_and_mean_of_nan() -> None:
    assert stays_finite(lambda: torch.ones(0).sum())
    assert "no elements" not in why(lambda: t([NAN]).mean(), op="mean")


@pytest.mark.first("sum of many elements")
def test_sum_in_half_precision() -> None:
    found = why(lambda: torch.full((2, 1000), 100.0, dtype=HALF).sum(1))
    assert found.startswith(
        "The sum over 1000 elements of the argument at [0, :] is 100000, beyond 65504, the limit "
        "of float16."
    )


@pytest.mark.second("sum of many elements")
def test_mean_whose_sum_overflows_and_sums_of_both_infinities() -> None:
    found = why(lambda: torch.full((2, 10), 3e38).mean((0, 1), keepdim=True))
    assert "The sum over 20 elements of the argument is 6e+39" in found
    assert "before it is divided" in found
    found = why(lambda: t([[1.0, 2.0], [INF, -INF]]).sum(-1))
    assert found.startswith("inf - inf is NaN: the argument at [1, :] holds 1 of inf and 1 of -inf")


@pytest.mark.near_miss("sum of many elements")
def test_sums_that_fit_or_held_nan() -> None:
    assert stays_finite(lambda: torch.full((600,), 100.0, dtype=HALF).sum())
    assert stays_finite(lambda: torch.full((1000,), 100.0, dtype=HALF).mean())
    found = why(lambda: t([NAN, INF]).sum(), op="sum")
    assert "inf - inf" not in found and "beyond" not in found


# Running sums and products ------------------------------------------------------------------------


@pytest.mark.first("running sum or product")
def test_cumulative_product() -> None:
    found = why(lambda: torch.full((2, 10), 1e10).cumprod(1))
    assert found.startswith(
        "The product of the first 4 elements of the argument at [0, :] is 1e+40, beyond 3.403e+38"
    )


@pytest.mark.second("running sum or product")
def test_cumulative_sum_along_the_first_dimension_in_half_precision() -> None:
    found = why(lambda: torch.full((9, 2), 10000.0, dtype=HALF).cumsum(0))
    assert (
        "The sum of the first 7 elements of the argument at [:, 0] is 70000, beyond 65504" in found
    )


@pytest.mark.near_miss("running sum or product")
def test_cumulative_products_that_fit_or_were_infinite() -> None:
    assert stays_finite(lambda: torch.full((3,), 1e10).cumprod(0))
    assert "first" not in why(lambda: t([1.0, INF]).cumsum(0), op="cumsum").replace(
        "first opera", ""
    )


@pytest.mark.first("overflow of a product")
def test_product() -> None:
    found = why(lambda: torch.full((2, 10), 3e30).prod(1))
    assert found.startswith("The product of 10 elements of the argument at [0, :] is 5.905e+304")


@pytest.mark.second("overflow of a product")
def test_product_of_all_in_double() -> None:
    found = why(lambda: torch.full((3, 40), 1e10).double().mul(1e10).prod())
    assert "The product of 120 elements of the argument is beyond 1.798e+308" in found


@pytest.mark.near_miss("overflow of a product")
def test_products_that_fit_or_hold_infinity() -> None:
    assert stays_finite(lambda: t([3e30, 0.0, 3e30]).prod())
    assert "product of" not in why(lambda: t([INF, 2.0]).prod(), op="prod")


# Norms --------------------------------------------------------------------------------------------


@pytest.mark.first("overflow of a norm")
def test_norm_whose_squares_overflow() -> None:
    found = why(lambda: torch.full((2, 10), 3e30).norm())
    assert found.startswith(
        "The squares in the norm of the argument, whose largest element is 3e+30, add up to 1.8e+62"
    )


@pytest.mark.second("overflow of a norm")
def test_norm_of_a_row_and_one_that_is_itself_too_large() -> None:
    x = torch.ones(2, 3, dtype=torch.float64)
    x[1, 1] = -1e200
    found = why(lambda: torch.linalg.vector_norm(x, dim=1))
    assert "at [1, :], whose largest element is 1e+200" in found and "beyond 1.798e+308" in found
    found = why(lambda: torch.full((4,), 60000.0, dtype=HALF).norm())
    assert "is 120000, beyond 65504, the limit of float16" in found


def test_total_norm_of_clipping() -> None:
    def clip() -> None:
        weight = nn.Parameter(torch.ones(3))
        weight.grad = t([1e30, 1e30, 0.0])
        nn.utils.clip_grad_norm_([weight], 1.0)

    found = why(clip, phase="update")
    assert "add up to 2e+60" in found and "Clipping by such a norm sets all gradients to 0" in found


@pytest.mark.near_miss("overflow of a norm")
def test_norms_that_fit_or_are_others() -> None:
    assert stays_finite(lambda: torch.full((2,), 1e18).norm())
    assert stays_finite(lambda: torch.full((2,), 1e30).norm(p=1))
    assert "squares" not in why(lambda: t([INF, 1.0]).norm(), op="linalg_vector_norm")


@pytest.mark.first("overflow of a distance")
def test_distance() -> None:
    found = why(lambda: torch.cdist(torch.ones(2, 3), torch.full((4, 3), 1e20)))
    assert "add up to 3e+40, beyond 3.403e+38" in found and "[0, :]" in found


@pytest.mark.second("overflow of a distance")
def test_distance_of_one_row_in_double() -> None:
    x = torch.ones(2, 3, dtype=torch.float64)
    x[1] = 1e200
    assert "[1, :]" in why(lambda: torch.cdist(x, torch.ones(1, 3, dtype=torch.float64)))


@pytest.mark.near_miss("overflow of a distance")
def test_distance_that_fits() -> None:
    assert stays_finite(lambda: torch.cdist(torch.ones(2, 3), torch.full((4, 3), 1e18)))
