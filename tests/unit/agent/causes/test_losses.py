"""Rules on losses."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.unit.agent.causes.capture import INF, NAN, stays_finite, why

t = torch.tensor


# Nothing to average -------------------------------------------------------------------------------


@pytest.mark.first("no target counts")
def test_all_targets_ignored() -> None:
    found = why(
        lambda: functional.cross_entropy(torch.ones(2, 3), t([-100, -100])),
        names={"target": "labels"},
    )
    assert found.startswith(
        "The mean loss divides 0 by 0: all 2 of labels equal ignore_index, -100. | Skip such a"
    )


@pytest.mark.first("no label counts under Trainer")
def test_no_label_counts_where_a_sum_is_divided_by_their_number() -> None:
    """`fixed_cross_entropy` of transformers, with what its Trainer counts."""

    def loss(labels: list[int], names: dict[str, str]) -> str:
        logits, targets = torch.ones(len(labels), 3), t(labels)
        items = (targets != -100).sum()
        total = functional.cross_entropy(logits, targets, reduction="sum")
        return why(lambda: total / items, names=names)

    trainer = {"self": "loss", "other": "num_items_in_batch"}
    found = loss([-100, -100], trainer)
    assert found.startswith("0/0 is NaN: num_items_in_batch is 0, no label of this batch counts")
    assert loss([-100], {"other": "count"}).startswith("0/0 is NaN: the ")


@pytest.mark.second("no label counts under Trainer")
def test_no_label_counts_of_a_loss_by_hand_in_half_precision() -> None:
    def run() -> torch.Tensor:
        each = functional.mse_loss(torch.ones(3), torch.ones(3), reduction="none").bfloat16()
        return each.sum().div_(torch.zeros(3).count_nonzero())

    names = {"other": "self.num_items_in_batch"}
    assert "is 0, no label of this batch counts" in why(run, names=names)


@pytest.mark.near_miss("no label counts under Trainer")
def test_a_loss_that_is_not_0_is_divided_by_0() -> None:
    names = {"self": "loss", "other": "num_items_in_batch"}
    assert why(lambda: t(1.0) / t(0), names=names).startswith("1/0 is inf")


@pytest.mark.second("no target counts")
def test_all_pixels_ignored_in_a_module_in_half_precision() -> None:
    loss = nn.CrossEntropyLoss(ignore_index=7)
    x, target = torch.ones(2, 9, 4, 4, dtype=torch.bfloat16), torch.full((2, 4, 4), 7)
    assert "all 32 of the target equal ignore_index, 7" in why(lambda: loss(x, target))


def test_all_targets_ignored_in_inference_mode_and_with_smoothing() -> None:
    def run() -> None:
        with torch.inference_mode():
            functional.cross_entropy(torch.ones(1, 3), t([-100]))

    assert "all 1 of the target equal" in why(run)
    found = why(
        lambda: functional.cross_entropy(torch.ones(2, 3), t([-100, -100]), label_smoothing=0.1)
    )
    assert "all 2 of the target" in found


def test_class_weights_of_0_and_no_targets() -> None:
    weight = t([0.0, 1.0])
    found = why(lambda: functional.cross_entropy(torch.ones(2, 2), t([0, 0]), weight=weight))
    assert "the class weights of all 2 of the target are 0" in found
    empty = torch.zeros(0, dtype=torch.long)
    assert "there are no targets" in why(lambda: functional.nll_loss(torch.ones(0, 2), empty))


@pytest.mark.near_miss("no target counts", "impossible target")
def test_a_target_that_counts_and_a_nan_that_came_in() -> None:
    assert stays_finite(lambda: functional.cross_entropy(torch.ones(2, 3), t([-100, 1])))
    assert stays_finite(
        lambda: functional.cross_entropy(torch.ones(2, 3), t([-100, -100]), reduction="sum")
    )
    found = why(lambda: functional.cross_entropy(t([[NAN, 1.0]]), t([1])), op="nll_loss_forward")
    assert "divides 0 by 0" not in found


# Impossible targets -------------------------------------------------------------------------------


@pytest.mark.first("impossible target")
def test_target_of_a_masked_class() -> None:
    logits = t([[1.0, 2.0], [1.0, -INF]])
    found = why(lambda: functional.cross_entropy(logits, t([0, 1])), op="nll_loss_forward")
    assert "the log-probability at [1, 1] is -inf, where the target is 1" in found


@pytest.mark.second("impossible target")
def test_target_of_a_masked_class_in_images() -> None:
    x = torch.zeros(1, 3, 2, 2, dtype=torch.float64)
    x[0, 2, 1, 0] = -INF
    target = t([[[0, 1], [2, 1]]])
    found = why(lambda: nn.NLLLoss()(x, target), op="nll_loss2d_forward")
    assert "at [0, 2, 1, 0] is -inf, where the target is 2" in found


def test_a_masked_class_that_is_no_target() -> None:
    found = why(lambda: functional.log_softmax(t([[1.0, -INF]]), 1), op="_log_softmax")
    assert "target" not in found
    ignored = t([[1.0, -INF], [0.0, 0.0]]), t([-100, 0])
    assert not functional.nll_loss(*ignored).isinf()


# Pairs --------------------------------------------------------------------------------------------


@pytest.mark.first("loss of nothing")
def test_mean_squared_error_of_nothing() -> None:
    found = why(lambda: functional.mse_loss(torch.ones(0), torch.ones(0)))
    assert found.startswith("The mean loss divides 0 by 0: the argument is empty, of shape [0].")


@pytest.mark.second("loss of nothing")
def test_smooth_loss_of_nothing_in_a_module_in_half_precision() -> None:
    found = why(lambda: nn.SmoothL1Loss()(torch.ones(0, 4).half(), torch.ones(0, 4).half()))
    assert "of shape [0, 4]" in found


@pytest.mark.near_miss("loss of nothing")
def test_sums_of_nothing() -> None:
    assert stays_finite(lambda: functional.mse_loss(torch.ones(0), torch.ones(0), reduction="sum"))


@pytest.mark.first("overflow of a squared error")
def test_squared_error_in_half_precision() -> None:
    x = t([[1.0, 300.0]], dtype=torch.float16)
    found = why(lambda: functional.mse_loss(x, x * 0), names={"self": "prediction"})
    assert found.startswith("(300 - 0)² is 90000, beyond 65504, the limit of float16")
    assert "prediction at [0, 1] is 300 and the target at [0, 1] is 0" in found


@pytest.mark.second("overflow of a squared error")
def test_sum_of_squared_errors() -> None:
    x = torch.zeros(3, 100)
    x[1, 7] = 1.9e19
    x[2] = 1.8e19
    found = why(lambda: nn.MSELoss(reduction="sum")(x, torch.zeros(3, 100)))
    assert found.startswith("(1.9e+19 - 0)² is 3.61e+38, beyond 3.403e+38")
    x.clamp_(max=1.8e19)
    found = why(lambda: nn.MSELoss(reduction="sum")(x, torch.zeros(3, 100)))
    assert "The sum of 300 squares is 3.272e+40, beyond 3.403e+38" in found
    assert "the argument at [1, 7] is 1.8e+19" in found


@pytest.mark.near_miss("overflow of a squared error")
def test_squared_errors_that_fit_or_were_infinite() -> None:
    assert stays_finite(lambda: functional.mse_loss(t([250.0]).half(), t([0.0]).half()))
    assert "²" not in why(lambda: functional.mse_loss(t([INF]), t([0.0])), op="mse_loss")


# CTC ----------------------------------------------------------------------------------------------


@pytest.mark.first("no alignment in CTC")
def test_ctc_without_an_alignment() -> None:
    log_probs = torch.ones(2, 1, 3).log_softmax(2)
    found = why(
        lambda: functional.ctc_loss(log_probs, torch.ones(1, 4, dtype=torch.long), t([2]), t([4]))
    )
    assert "no alignment for sample 0: 4 labels and 3 blanks between equal ones need more" in found
    assert "its 2 steps" in found


@pytest.mark.second("no alignment in CTC")
def test_ctc_in_a_module_with_lengths_as_tensors() -> None:
    log_probs = torch.zeros(4, 2, 5, dtype=torch.float64).log_softmax(2)
    targets = t([[1, 2, 0, 0, 0], [1, 2, 3, 4, 1]])
    program = lambda: nn.CTCLoss(reduction="none")(log_probs, targets, t([4, 4]), t([2, 5]))  # noqa: E731
    found = why(program)
    assert "sample 1: 5 labels need more than its 4 steps" in found


@pytest.mark.near_miss("no alignment in CTC")
def test_ctc_that_fits() -> None:
    log_probs = torch.zeros(4, 1, 5).log_softmax(2)
    program = lambda: functional.ctc_loss(log_probs, t([[1, 2, 3, 4]]), t([4]), t([4]))  # noqa: E731
    assert program().isfinite()
    assert "alignment" not in why(program, op="_ctc_loss")
    short = functional.ctc_loss(log_probs, t([[1, 1, 1, 1]]), t([4]), t([4]), zero_infinity=True)
    assert short == 0
