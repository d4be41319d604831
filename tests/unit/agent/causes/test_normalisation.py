"""Rules on normalisation layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.agent.causes.capture import INF, NAN, stays_finite, why

t = torch.tensor
MIXED = t([1.0, -1.0, 1.0, 1.0])


@pytest.mark.first("layer_norm of a constant")
def test_layer_norm_of_a_constant_row() -> None:
    x = t([[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]])
    found = why(lambda: functional.layer_norm(x, (3,), eps=0.0), names={"input": "hidden"})
    assert found.startswith(
        "0/0 is NaN: the variance of hidden at [1, :] is 0, since all of it is 2, and eps is 0."
    )


@pytest.mark.second("layer_norm of a constant")
def test_layer_norm_in_a_module_over_two_dimensions_in_double() -> None:
    layer = nn.LayerNorm([2, 2], eps=0.0, dtype=torch.float64)
    x = torch.arange(12, dtype=torch.float64).reshape(3, 2, 2)
    x[2] = 0.0
    assert "the variance of the input at [2, :, :] is 0, since all of it is 0" in why(
        lambda: layer(x)
    )


def test_layer_norm_of_large_numbers_and_in_inference_mode() -> None:
    assert "The variance of the input at [:] is 6.75e+60, beyond 3.403e+38" in why(
        lambda: functional.layer_norm(MIXED * 3e30, (4,))
    )

    def run() -> None:
        with torch.inference_mode():
            functional.layer_norm(torch.ones(1, 2), (2,), eps=0.0)

    assert "at [0, :] is 0, since all of it is 1" in why(run)


@pytest.mark.near_miss("layer_norm of a constant")
def test_layer_norm_with_an_eps_or_of_a_bad_input() -> None:
    assert stays_finite(lambda: functional.layer_norm(torch.ones(2, 3), (3,)))
    assert stays_finite(lambda: functional.layer_norm(torch.ones(2, 3).half(), (3,), eps=1e-8))
    found = why(lambda: functional.layer_norm(t([[INF, 1.0]]), (2,)), op="native_layer_norm")
    assert "variance" not in found


@pytest.mark.first("group_norm of a constant")
def test_group_norm_of_a_constant_group() -> None:
    x = torch.arange(24.0).reshape(2, 4, 3)
    x[1, 2:] = 5.0
    found = why(lambda: functional.group_norm(x, 2, eps=0.0))
    assert "the variance of the input at [1, 2:4] is 0, since all of it is 5, and eps is 0" in found


@pytest.mark.second("group_norm of a constant")
def test_group_norm_in_a_module_of_large_numbers() -> None:
    layer = nn.GroupNorm(1, 2)
    found = why(lambda: layer(MIXED.reshape(1, 2, 2) * 1e25))
    assert "The variance of the input at [0, 0:2] is 7.5e+49, beyond 3.403e+38" in found


@pytest.mark.near_miss("group_norm of a constant")
def test_group_norm_with_an_eps() -> None:
    assert stays_finite(lambda: functional.group_norm(torch.ones(2, 4, 3), 2))
    assert "variance" not in why(
        lambda: functional.group_norm(torch.full((1, 2, 2), NAN), 1), op="native_group_norm"
    )


@pytest.mark.first("rms_norm of zeros")
def test_rms_norm_of_zeros() -> None:
    def run() -> None:
        with torch.inference_mode():
            functional.rms_norm(t([[1.0, 2.0], [0.0, 0.0]]), (2,), eps=0.0)

    found = why(run, op="rms_norm")
    assert (
        "the mean square of the input at [1, :] is 0, since all of it is 0, and eps is 0" in found
    )


@pytest.mark.second("rms_norm of zeros")
def test_rms_norm_in_a_module_over_two_dimensions_in_double() -> None:
    layer = nn.RMSNorm([2, 2], eps=0.0, dtype=torch.float64)
    x = torch.ones(2, 3, 2, 2, dtype=torch.float64)
    x[1, 2] = 0.0

    @torch.inference_mode()
    def run() -> torch.Tensor:
        return layer(x)

    assert "the mean square of the input at [1, 2, :, :] is 0" in why(run, op="rms_norm")


def test_rms_norm_that_is_run_in_parts() -> None:
    found = why(lambda: nn.RMSNorm(2, eps=0.0, dtype=torch.float64)(torch.zeros(1, 2).double()))
    assert found.startswith("rsqrt of 0 is inf: the argument at [0, 0] is 0.")


@pytest.mark.near_miss("rms_norm of zeros")
def test_rms_norm_with_an_eps() -> None:
    with torch.inference_mode():
        assert stays_finite(lambda: functional.rms_norm(torch.zeros(2, 3), (3,)))


@pytest.mark.first("poisoned running statistics")
def test_running_variance_that_is_negative() -> None:
    variance = t([1.0, -1.0, 1.0])
    found = why(lambda: functional.batch_norm(torch.ones(4, 3), torch.zeros(3), variance))
    assert found.startswith(
        "The running statistics of channel 1 are negative: running_var at [1] is -1"
    )


@pytest.mark.second("poisoned running statistics")
def test_running_mean_that_is_bad_in_a_module() -> None:
    layer = nn.BatchNorm2d(2).eval()
    assert layer.running_mean is not None
    layer.running_mean[1] = NAN
    program = lambda: layer(torch.ones(1, 2, 3, 3))  # noqa: E731
    found = why(program, op="native_batch_norm", names={"running_mean": "self.running_mean"})
    assert "channel 1 are not finite: self.running_mean at [1] is NaN" in found


@pytest.mark.near_miss("poisoned running statistics")
def test_running_statistics_that_are_fine() -> None:
    layer = nn.BatchNorm1d(3).eval()
    assert stays_finite(lambda: layer(torch.ones(4, 3)))
    found = why(lambda: nn.BatchNorm1d(1).eval()(t([[INF]])), op="native_batch_norm")
    assert "statistics" not in found


@pytest.mark.first("batch_norm of large numbers")
def test_batch_norm_of_large_numbers_in_training() -> None:
    x = torch.full((4, 3), 3e38)
    found = why(lambda: functional.batch_norm(x, None, None, training=True))
    assert "The sum of the input at [:, 0], for its mean, is 1.2e+39, beyond 3.403e+38" in found


@pytest.mark.second("batch_norm of large numbers")
def test_batch_norm_of_one_large_channel_in_a_module() -> None:
    x = torch.rand(2, 3, 2)
    x[:, 1] = 2e38
    found = why(lambda: nn.BatchNorm1d(3)(x))
    assert "The sum of the input at [:, 1, :], for its mean, is 8e+38" in found


@pytest.mark.near_miss("batch_norm of large numbers")
def test_batch_norm_of_constants_in_training() -> None:
    layer = nn.BatchNorm1d(3)
    assert stays_finite(lambda: layer(torch.ones(4, 3)))


@pytest.mark.first("weight_norm of zeros")
def test_weight_norm_of_zeros() -> None:
    weight = t([[1.0, 2.0], [0.0, 0.0]])
    found = why(lambda: torch.ops.aten._weight_norm_interface(weight, torch.ones(2, 1)))
    assert found.startswith("weight_norm divides by a norm of 0: v is 0 throughout for index 1 of")


@pytest.mark.second("weight_norm of zeros")
def test_weight_norm_in_a_layer() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 3, 1))
    with torch.no_grad():
        layer.parametrizations.weight.original1[2] = 0.0  # type: ignore[index]
    assert "index 2 of dimension 0" in why(lambda: layer(torch.ones(1, 2, 4)))


@pytest.mark.near_miss("weight_norm of zeros")
def test_weight_norm_of_weights() -> None:
    assert stays_finite(
        lambda: torch.ops.aten._weight_norm_interface(torch.ones(2, 3), torch.zeros(2, 1))
    )
