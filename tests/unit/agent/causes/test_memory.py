"""Rules on what was bad before: memory nobody wrote, constants, weights, data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional

from tensorpoint.agent.causes import explain
from tests.unit.agent.causes.capture import INF, NAN, captured, stays_finite, why

t = torch.tensor


@pytest.fixture
def filled() -> Iterator[None]:
    """torch fills memory that it hands out with NaN, rather than leave what happens to be there."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# Memory nobody wrote ------------------------------------------------------------------------------


@pytest.mark.usefixtures("filled")
@pytest.mark.first("memory nobody wrote")
def test_reading_empty_memory() -> None:
    found = why(lambda: torch.empty(3) + 1, op="add", names={"self": "buffer"})
    assert found.startswith(
        "buffer comes from empty and was read before it was written: buffer at [0] is NaN. | "
        "torch.empty and its kin"
    )


@pytest.mark.usefixtures("filled")
@pytest.mark.second("memory nobody wrote")
def test_cache_that_is_written_in_part() -> None:
    def run() -> torch.Tensor:
        cache = torch.ones(1).new_empty(2, 4, dtype=torch.bfloat16)
        cache[:, :2] = 1.0
        return torch.zeros(1, 2, dtype=torch.bfloat16) @ cache

    found = why(run, op="mm")
    assert "comes from new_empty and was read" in found and "at [0, 2] is NaN" in found


@pytest.mark.usefixtures("filled")
def test_empty_itself() -> None:
    assert why(lambda: torch.empty_like(torch.ones(2)), op="empty_like").startswith(
        "empty_like returns memory that nobody has written at [0]."
    )
    assert "resize_ returns memory" in why(lambda: torch.ones(1).resize_(3), op="resize_")


@pytest.mark.usefixtures("filled")
@pytest.mark.near_miss("memory nobody wrote")
def test_memory_that_was_written() -> None:
    def run() -> None:
        memory = torch.empty(2)
        memory.fill_(-1.0)
        memory.log()

    assert why(run, op="log").startswith("log of -1 is NaN")


# Constants ----------------------------------------------------------------------------------------


@pytest.mark.first("a constant that isn't finite")
def test_constants() -> None:
    found = why(lambda: torch.full((2,), NAN), op="full")
    assert found.startswith("The program writes NaN there at [0], by full.")


@pytest.mark.second("a constant that isn't finite")
def test_a_mask_that_is_written_in_place_in_half_precision() -> None:
    x, drop = torch.ones(2, 2).half(), t([[False, False], [False, True]])
    found = why(lambda: x.masked_fill_(drop, -INF), op="masked_fill_")
    assert found.startswith("The program writes -inf there at [1, 1], by masked_fill_.")


@pytest.mark.near_miss("a constant that isn't finite")
def test_constants_that_are_finite() -> None:
    assert stays_finite(lambda: torch.full((2,), -1e9))
    operation = captured(
        lambda: t([1.0, NAN]).masked_fill(t([True, False]), -1e9), op="masked_fill"
    )
    cause = explain(operation)
    assert cause is None or "The program writes" not in cause.cause


# Weights and data ---------------------------------------------------------------------------------


@pytest.mark.first("bad before the operation")
def test_weight_that_was_not_loaded() -> None:
    weight = nn.Parameter(t([[1.0, NAN]]))
    found = why(
        lambda: functional.linear(torch.ones(1, 2), weight), op="mm", names={"mat2": "self.w"}
    )
    assert found.startswith(
        "self.w was bad before this operation, and none of this step made it so: self.w at [1, 0] "
        "is NaN."
    )
    assert "missing keys" in found


@pytest.mark.second("bad before the operation")
def test_embedding_with_a_bad_row_in_half_precision() -> None:
    layer = nn.Embedding(3, 2).bfloat16()
    with torch.no_grad():
        layer.weight[1, 1] = INF
    found = why(lambda: layer(t([[0, 1]])), op="embedding")
    assert (
        found.startswith("The weight was bad before this operation") and "at [1, 1] is inf" in found
    )


@pytest.mark.near_miss("bad before the operation")
def test_masks_and_what_an_operation_made_are_not_from_outside() -> None:
    mask = t([0.0, -INF])
    assert explain(captured(lambda: torch.ones(2) + mask, op="add")) is None
    found = why(lambda: t([-1.0]).log() + 1, op="add")
    assert "before this operation" not in found
    found = why(lambda: t([1e5]).half().float().exp(), op="exp")
    assert "before this operation" not in found
