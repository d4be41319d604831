"""Rules on divisions by zero, inf - inf, 0·inf and on numbers that are not finite."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tensorpoint.agent.causes import explain
from tests.unit.agent.causes.capture import INF, NAN, captured, stays_finite, why

t = torch.tensor


# Division by 0 ------------------------------------------------------------------------------------


@pytest.mark.first("division by 0")
def test_x_over_0() -> None:
    names = {"self": "counts", "other": "total"}
    found = why(lambda: t([[1.0], [3.0]]) / t([1.0, 0.0]), names=names)
    assert found.startswith("1/0 is inf: counts at [0, 0] is 1 and total at [1] is 0.")


@pytest.mark.second("division by 0")
def test_0_over_0_in_a_hand_written_normalisation_under_autocast() -> None:
    class Normalise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = nn.functional.linear(x, torch.zeros(3, 3))
            return y / y.norm(dim=-1, keepdim=True)

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            Normalise()(torch.ones(2, 3))

    found = why(run)
    assert found.startswith("0/0 is NaN: the dividend at [0, 0] is 0 and the divisor at [0, 0]")


def test_cosine_similarity_of_zero_vectors() -> None:
    found = why(lambda: functional.cosine_similarity(torch.zeros(2, 3), torch.ones(2, 3), eps=0))
    assert found.startswith("0/0 is NaN") and "F.cosine_similarity" in found
    assert stays_finite(lambda: functional.cosine_similarity(torch.zeros(2, 3), torch.ones(2, 3)))


def test_eps_that_is_0_in_float16() -> None:
    def run() -> torch.Tensor:
        scores = torch.zeros(2, 4, dtype=torch.float16)
        return scores / (scores.sum(-1, keepdim=True) + 1e-8)

    found = why(run)
    assert found.startswith(
        "0/0 is NaN: the divisor at [0, 0] is 0, to which float16 has rounded 0 + 1e-08 = 1e-08."
    )


def test_division_by_the_number_0_and_remainders() -> None:
    assert why(lambda: t([2.0]).div_(0)).startswith("2/0 is inf: the dividend at [0] is 2 and")
    found = why(lambda: torch.remainder(t([5.0]), 0))
    assert found.startswith("The remainder of a division by 0 is NaN")


@pytest.mark.near_miss("division by 0")
def test_a_division_by_something_small_is_an_overflow() -> None:
    found = why(lambda: t([1.0, 1e30]) / t([1.0, 1e-30]))
    assert found.startswith("1e+30 / 1e-30 is 1e+60, beyond 3.403e+38, the limit of float32")


def test_division_of_a_nan_by_0_is_not_the_division_s_fault() -> None:
    assert "/0" not in why(lambda: t([NAN]) / 0, op="div")


# inf - inf ----------------------------------------------------------------------------------------


@pytest.mark.first("inf - inf")
def test_inf_minus_inf() -> None:
    found = why(lambda: t([1.0, INF]) - t([1.0, INF]), names={"self": "a", "other": "b"})
    assert found.startswith("inf - inf is NaN: a at [1] is inf and b at [1] is inf.")


@pytest.mark.second("inf - inf")
def test_inf_minus_inf_by_alpha_and_broadcasting_in_half_precision() -> None:
    x = t([[0.0, -INF], [1.0, 2.0]], dtype=torch.bfloat16)
    found = why(lambda: x.sub_(x.amin(), alpha=1))
    assert found.startswith("inf - inf is NaN: the first operand at [0, 1] is -inf and the second")
    assert "inf - inf" in why(lambda: torch.add(t(INF), t(INF), alpha=-2))


@pytest.mark.near_miss("inf - inf")
def test_infinities_of_one_sign_add_up() -> None:
    assert "inf - inf" not in why(lambda: t([INF]) + t([INF]), op="add")
    assert "inf - inf" not in why(lambda: t([NAN]) - t([INF]), op="sub")


# 0·inf and inf/inf --------------------------------------------------------------------------------


@pytest.mark.first("0·inf and inf/inf")
def test_p_log_p_at_0() -> None:
    def run() -> torch.Tensor:
        p = t([0.5, 0.0])
        return p * p.log()

    found = why(run, op="mul", names={"self": "p"})
    assert found.startswith("0·log(0) is NaN, not 0: p at [1] is 0 and the second operand at [1]")
    assert "torch.special.entr" in found


@pytest.mark.second("0·inf and inf/inf")
def test_0_times_inf_by_a_mask_of_zeros() -> None:
    keep = t([[True], [False]])
    found = why(lambda: t([[1.0, 2.0], [3.0, INF]], dtype=torch.float64).mul_(keep))
    assert found.startswith("0·inf is NaN: the first operand at [1, 1] is inf and the second")
    assert "log(0)" not in found and "torch.where" in found


def test_inf_over_inf_in_a_softmax_by_hand() -> None:
    def softmax(x: torch.Tensor) -> torch.Tensor:
        exponentials = x.exp()
        return exponentials / exponentials.sum(-1, keepdim=True)

    found = why(lambda: softmax(t([[1.0, 2.0], [3.0, 100.0]])), op="div")
    assert found.startswith(
        "inf/inf is NaN: the dividend at [1, 1] is inf and the divisor at [1, 0]"
    )


@pytest.mark.near_miss("0·inf and inf/inf")
def test_0_times_a_large_number_is_0() -> None:
    assert stays_finite(lambda: t([3e38]) * 0)
    assert "0·inf" not in why(lambda: t([NAN]) * 0, op="mul")
    assert "0·inf" not in why(lambda: t([INF]) * 2, op="mul")


# Numbers ------------------------------------------------------------------------------------------


@pytest.mark.first("a number that isn't finite")
def test_an_infinite_learning_rate() -> None:
    def step() -> None:
        weight = nn.Parameter(torch.ones(2))
        weight.grad = t([0.5, 1.0])
        torch.optim.SGD([weight], lr=INF, foreach=False).step()

    found = why(step, phase="update")
    assert found.startswith("The number alpha is -inf, the other operands are finite.")


@pytest.mark.second("a number that isn't finite")
def test_a_nan_in_a_configuration() -> None:
    found = why(lambda: torch.ones(2, 2) * NAN, names={"other": "self.temperature"})
    assert found.startswith("The number self.temperature is NaN")


@pytest.mark.near_miss("a number that isn't finite")
def test_numbers_that_may_be_infinite() -> None:
    assert "The number" not in why(
        lambda: torch.linalg.vector_norm(t([INF]), ord=INF), op="linalg_vector_norm"
    )
    assert "The number" not in why(lambda: t([INF]) * INF, op="mul")


def test_what_hands_on_an_infinity_did_not_make_it() -> None:
    assert why(lambda: t([INF, 1.0]) + 1, op="add").startswith("The first operand was bad before")
    assert explain(captured(lambda: t([-INF, 1.0]) + 1, op="add")) is None
