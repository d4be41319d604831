"""The modes that runs of the tracer are under."""

from __future__ import annotations

import time

import pytest
import torch

from tensorpoint.shapes.tracing.modes import Assumptions, Deadline, TooLong, without_data


def works_on() -> None:
    with Deadline(time.monotonic() + 0.1), torch.no_grad(), torch.autocast("cpu"):
        while True:
            torch.ones(1)


def test_what_takes_too_long_leaves_torch_as_it_was() -> None:
    with pytest.raises(TooLong):
        works_on()
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_what_ends_too_late_leaves_torch_as_it_was() -> None:
    with Deadline(time.monotonic() + 0.1), torch.no_grad():
        time.sleep(0.2)
    assert torch.is_grad_enabled()


def grouped(rows: int, inner: int) -> torch.Tensor:
    """A product for each of 8 experts, as transformers has it, of 4 M elements."""
    with without_data(Assumptions("program.py")):
        ends = torch.arange(8, dtype=torch.int32)
        return torch.ops.aten._grouped_mm(
            torch.zeros(rows, inner), torch.zeros(8, 1024, 512), offs=ends
        )


def test_a_large_operation_whose_meta_kernel_takes_bf16_only_has_its_shape_and_dtype() -> None:
    out = grouped(24, 1024)
    assert (tuple(out.shape), out.dtype) == ((24, 512), torch.float32)
    with pytest.raises(RuntimeError, match=r"contraction dimension|BF16"):
        grouped(24, 1000)
