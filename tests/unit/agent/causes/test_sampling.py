"""Rules on sampling from what is no distribution."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tensorpoint.agent.causes import explain
from tests.unit.agent.causes.capture import INF, NAN, captured, why

t = torch.tensor


@pytest.mark.first("no distribution to sample from")
def test_multinomial_of_a_nan() -> None:
    found = why(lambda: torch.multinomial(t([[0.5, 0.5], [NAN, 0.5]]), 1), names={"self": "probs"})
    assert found.startswith(
        "multinomial got a probability that is not finite: probs at [1, 0] is NaN"
    )


def test_multinomial_of_a_masked_row_names_what_made_it() -> None:
    def sample() -> torch.Tensor:
        logits = torch.full((1, 3), -INF, dtype=torch.bfloat16)
        return torch.multinomial(functional.softmax(logits, -1), num_samples=1)

    found = why(sample, op="multinomial")
    assert "at [0, 0] is NaN, which _softmax made" in found


def test_multinomial_of_negative_and_of_no_weights() -> None:
    found = why(lambda: torch.multinomial(t([0.5, -1.0]), 1))
    assert "that is negative: the argument at [1] is -1. | Pass probabilities" in found
    found = why(lambda: torch.multinomial(t([[0.5, 0.5], [0.0, 0.0]]), 1))
    assert found.startswith("multinomial got probabilities that are all 0: the argument at [1, :].")


@pytest.mark.second("no distribution to sample from")
def test_bernoulli_and_poisson() -> None:
    found = why(lambda: torch.bernoulli(t([0.5, 2.0], dtype=torch.float64)))
    assert "bernoulli got a probability that is above 1: the argument at [1] is 2" in found
    assert "poisson got a rate that is negative" in why(lambda: torch.poisson(t([1.0, -1.0])))


@pytest.mark.near_miss("no distribution to sample from")
def test_a_distribution_whose_call_fails_for_another_reason() -> None:
    operation = captured(lambda: torch.multinomial(t([0.5, 0.5]), 3), op="multinomial")
    assert operation.outputs == () and explain(operation) is None
    assert explain(captured(lambda: torch.ones(2) @ torch.ones(3), op="dot")) is None
