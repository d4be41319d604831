"""Rules on masks of -inf."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from tensorpoint.agent.causes import explain
from tests.unit.agent.causes.capture import INF, NAN, captured, gradient, said, stays_finite, why

t = torch.tensor
LOWEST = torch.finfo(torch.float32).min


# Two masks ----------------------------------------------------------------------------------------


@pytest.mark.first("two masks add up")
def test_two_masks_of_the_lowest_number() -> None:
    padding, causal = t([0.0, LOWEST]), t([[0.0, LOWEST], [0.0, LOWEST]])
    found = why(lambda: causal + padding, names={"self": "causal", "other": "padding"})
    assert found.startswith("Two masks add up to -inf, beyond -3.403e+38, the limit of float32")
    assert "causal at [0, 1] is -3.403e+38 and padding at [1] is -3.403e+38" in found


@pytest.mark.second("two masks add up")
def test_two_masks_in_place_in_half_precision() -> None:
    def run() -> torch.Tensor:
        scores = torch.zeros(1, 2, 2, dtype=torch.float16)
        mask = torch.triu(torch.full((2, 2), -60000.0, dtype=torch.float16), 1)
        scores += mask
        return scores.add_(mask)

    found = why(run)
    assert found.startswith("Two masks add up to -inf, beyond -65504, the limit of float16")
    assert "at [0, 0, 1] is -60000" in found


@pytest.mark.near_miss("two masks add up")
def test_one_mask_and_a_sum_that_is_no_mask() -> None:
    assert stays_finite(lambda: t([5.0, -5.0]) + t([LOWEST, LOWEST]))
    assert "masks" not in why(lambda: t([LOWEST, 0.0]) - t([3e38, 0.0]))
    assert "masks" not in why(lambda: t([3e38]) + t([3e38]))


# Softmax ------------------------------------------------------------------------------------------


@pytest.mark.first("softmax of a masked row")
def test_softmax_of_a_masked_row() -> None:
    def run() -> torch.Tensor:
        keep = t([[True, True], [False, False]])
        return torch.ones(2, 2).masked_fill(~keep, -INF).softmax(-1)

    found = why(run, names={"self": "scores"})
    assert found.startswith(
        "The softmax of a row that is masked as a whole is NaN: scores at [1, :] holds nothing but "
        "-inf (2 of 2)."
    )


def test_masked_row_in_multihead_attention() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def run() -> None:
        x = torch.ones(2, 3, 4)
        attention(x, x, x, key_padding_mask=t([[False] * 3, [True] * 3]))

    assert "the argument at [2, 0, :] holds nothing but -inf (3 of 3)" in why(run)


@pytest.mark.second("softmax of a masked row")
def test_log_softmax_over_another_dimension_in_inference_mode() -> None:
    def run() -> None:
        x = torch.zeros(3, 2, 2, dtype=torch.bfloat16)
        x[:, 1, 0] = -INF
        with torch.inference_mode():
            functional.log_softmax(x, dim=0)

    assert "at [:, 1, 0] holds nothing but -inf (3 of 3)" in why(run)


def test_softmax_of_a_score_that_overflowed() -> None:
    found = why(lambda: t([[1.0, 2.0, 3.0], [1.0, INF, 3.0]]).softmax(1), op="_softmax")
    assert found.startswith("The softmax of a row with +inf is NaN, since it subtracts the maximum")
    assert "at [1, :] holds 1 of 3" in found


@pytest.mark.near_miss("softmax of a masked row")
def test_softmax_of_rows_that_are_masked_in_part_or_hold_nan() -> None:
    assert stays_finite(lambda: torch.ones(2, 2).masked_fill(torch.eye(2) == 1, -1e9).softmax(1))
    assert "row" not in why(lambda: t([[NAN, -INF]]).softmax(1), op="_softmax")


@pytest.mark.first("softmax of a masked row, fast path")
def test_torch_s_own_masked_softmax() -> None:
    mask = torch.zeros(1, 1, 2, 3, dtype=torch.bool)
    mask[0, 0, 1] = True
    found = why(lambda: torch.ops.aten._masked_softmax(torch.ones(1, 1, 2, 3), mask, -1, 2))
    assert "the mask at [0, 0, 1, :] is True throughout" in found


@pytest.mark.second("softmax of a masked row, fast path")
def test_masked_softmax_of_a_batch_in_double() -> None:
    scores, mask = torch.ones(2, 3, dtype=torch.float64), t([[False] * 3, [True] * 3])
    found = why(lambda: torch.ops.aten._masked_softmax(scores, mask, 1, 2))
    assert "the mask at [1, :] is True throughout" in found


@pytest.mark.near_miss("softmax of a masked row, fast path")
def test_masked_softmax_with_something_left() -> None:
    mask = torch.triu(torch.ones(3, 3, dtype=torch.bool), 1)
    assert stays_finite(lambda: torch.ops.aten._masked_softmax(torch.ones(3, 3), mask, -1, 2))


# Attention ----------------------------------------------------------------------------------------


def _as_before_2_5(mask: torch.Tensor, dtype: torch.dtype = torch.float32) -> str:
    """What is said of torch's operation with the output that torch made of it before 2.5."""
    x = torch.ones(2, 1, mask.shape[-2], 4, dtype=dtype)
    keys = torch.ones(2, 1, mask.shape[-1], 4, dtype=dtype)
    operation = captured(
        lambda: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            x, keys, keys * NAN, attn_mask=mask
        ),
        op="_scaled_dot_product_flash_attention_for_cpu",
    )
    scores = x @ keys.transpose(-1, -2) + mask
    arguments = operation.arguments | {"value": keys}
    outputs = (scores.softmax(-1) @ keys, *operation.outputs[1:])
    return said(explain(replace(operation, arguments=arguments, outputs=outputs, sources={})))


@pytest.mark.first("attention of a masked query")
def test_attention_of_a_masked_query() -> None:
    found = _as_before_2_5(t([[0.0, 0.0], [-INF, -INF]]))
    assert found.startswith("Attention of a query that is masked as a whole is NaN")
    assert "the mask at [1, :] leaves it none of 2 keys" in found


@pytest.mark.second("attention of a masked query")
def test_attention_of_a_masked_query_by_batch_in_half_precision() -> None:
    mask = torch.zeros(2, 1, 2, 3, dtype=torch.bfloat16)
    mask[1, 0, 0] = -INF
    assert "the mask at [1, 0, 0, :] leaves it none of 3 keys" in _as_before_2_5(
        mask, torch.bfloat16
    )


@pytest.mark.near_miss("attention of a masked query")
def test_attention_that_has_a_key_left_or_a_bad_value() -> None:
    assert stays_finite(
        lambda: functional.scaled_dot_product_attention(
            *[torch.ones(1, 1, 2, 4)] * 3, attn_mask=t([[0.0, -1e9], [-1e9, -1e9]])
        )
    )
    x = torch.ones(1, 1, 2, 4)
    found = why(
        lambda: functional.scaled_dot_product_attention(x, x, x * NAN, attn_mask=torch.zeros(2, 2)),
        op="_scaled_dot_product_flash_attention_for_cpu",
    )
    assert "masked" not in found


@pytest.mark.first("overflow of attention scores")
def test_attention_scores_that_overflow() -> None:
    x, keys = torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4)
    x[0, 1, 2], keys[0, 1, 1] = 1e20, 1e20
    found = why(lambda: functional.scaled_dot_product_attention(x, keys, x), names={"key": "k"})
    assert found.startswith("The score of a query and a key is 2e+40, beyond 3.403e+38: ")
    assert "at [0, 1, 2, :] times k at [0, 1, 1, :]." in found


@pytest.mark.second("overflow of attention scores")
def test_attention_scores_that_overflow_in_inference_mode_by_a_scale() -> None:
    def run() -> None:
        x = torch.full((2, 1, 2), 1e15, dtype=torch.bfloat16)
        with torch.inference_mode():
            functional.scaled_dot_product_attention(x, x, x, scale=1e10)

    found = why(run)
    assert "at [0, 0, :] times" in found and "beyond 3.403e+38" in found


@pytest.mark.near_miss("overflow of attention scores")
def test_attention_scores_that_fit() -> None:
    x = torch.full((1, 1, 2, 4), 1e15)
    assert stays_finite(lambda: functional.scaled_dot_product_attention(x, x, x))


# Logarithms of sums -------------------------------------------------------------------------------


@pytest.mark.first("logsumexp of nothing")
def test_logsumexp_of_a_masked_row() -> None:
    found = why(lambda: t([[1.0, 2.0], [-INF, -INF]]).logsumexp(1), op="logsumexp")
    assert found.startswith("The logarithm of a sum of 0 is -inf: the argument at [1, :] holds")


@pytest.mark.second("logsumexp of nothing")
def test_logaddexp_and_a_kept_dimension_in_double() -> None:
    found = why(lambda: torch.logaddexp(t([0.0, -INF]), t(-INF)), op="logaddexp")
    assert "the first operand at [1] is -inf and the second operand is -inf" in found
    x = torch.full((2, 3), -INF, dtype=torch.float64)
    found = why(lambda: x.logsumexp(0, keepdim=True), op="logsumexp")
    assert "the argument at [:, 0] holds nothing but -inf (2 of 2)" in found


@pytest.mark.near_miss("logsumexp of nothing")
def test_logsumexp_with_something_left() -> None:
    assert "sum of 0" not in why(lambda: t([INF, -INF]).logsumexp(0), op="logsumexp")
    assert stays_finite(lambda: torch.logaddexp(t([0.0]), t([-1e30])))


@pytest.mark.first("gradient of logsumexp of nothing")
def test_gradient_of_logsumexp_of_a_masked_row() -> None:
    program = gradient(lambda x: (x + t([[0.0], [-INF]])).logsumexp(1), [[1.0, 2.0], [3.0, 4.0]])
    found = why(program, op="sub", phase="backward")
    assert found.startswith(
        "The gradient of logsumexp of a row that is masked as a whole is NaN at [1, 0]"
    )


@pytest.mark.second("gradient of logsumexp of nothing")
def test_gradient_of_logsumexp_of_all_in_a_module_in_double() -> None:
    class Evidence(nn.Module):
        def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
            return torch.logsumexp(x.masked_fill(~keep, -INF), dim=(0, 1))

    x = torch.ones(2, 2, dtype=torch.float64, requires_grad=True)
    found = why(
        lambda: Evidence()(x, torch.zeros(2, 2, dtype=torch.bool)).backward(),
        op="sub",
        phase="backward",
    )
    assert "nothing but -inf" in found


@pytest.mark.near_miss("gradient of logsumexp of nothing")
def test_gradient_of_logsumexp_with_something_left() -> None:
    assert "NaN" not in str(torch.autograd.grad(*_loss_and_input()))
    found = why(gradient(lambda x: x.logsumexp(0), [INF, 1.0]), op="sub", phase="backward")
    assert "masked" not in found.partition(" | ")[0]


def _loss_and_input() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.ones(2, requires_grad=True)
    return (x + t([0.0, -INF])).logsumexp(0), x
