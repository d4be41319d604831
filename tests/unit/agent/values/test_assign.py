"""Setting elements: what is written, what that means for autograd, and what is refused."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tensorpoint.agent.values.assign import Refusal, set_element
from tensorpoint.agent.values.known import Known
from tensorpoint.agent.values.setting import Setting
from tensorpoint.agent.values.view import View


def test_an_element_a_row_and_a_view_are_written() -> None:
    grid = torch.arange(6.0).reshape(2, 3)
    set_element(grid, (1, 2), 7.5, "grid")
    set_element(grid.T, (0, 0), 9, "grid.T")  # not contiguous: the same memory
    set_element(grid[1], slice(0, 2), torch.tensor([1.0, 2.0]), "grid[1]")
    assert grid.tolist() == [[9.0, 1.0, 2.0], [1.0, 2.0, 7.5]]
    number = torch.tensor(1.0)
    set_element(number, (), 2.0, "number")
    assert number.item() == 2.0


@pytest.mark.parametrize(
    ("dtype", "value", "kept"),
    [
        (torch.bool, True, True),
        (torch.complex64, 1 + 2j, 1 + 2j),
        (torch.complex64, 3, 3 + 0j),
        (torch.bfloat16, 0.5, 0.5),
        (torch.float16, -math.inf, -math.inf),
        (torch.uint8, 255, 255),
        (torch.uint16, 65535, 65535),
        (torch.uint64, 2**64 - 1, 2**64 - 1),
        (torch.float8_e4m3fn, 448.0, 448.0),
    ],
)
def test_values_that_fit_a_dtype(dtype: Any, value: Any, kept: Any) -> None:
    tensor = torch.zeros(2, dtype=dtype)
    set_element(tensor, 1, value, "tensor")
    assert tensor[1].item() == kept and tensor[0].item() == 0
    floating = torch.zeros(1)
    set_element(floating, 0, math.nan, "floating")
    assert math.isnan(floating.item())


@pytest.mark.parametrize(
    ("dtype", "value", "reason"),
    [
        (torch.int64, math.nan, "nan is no value of i64"),
        (torch.int64, 2.0, "2.0 is no value of i64"),
        (torch.int32, True, "True is no value of i32"),
        (torch.uint8, -1, "-1 is out of the range of u8"),
        (torch.uint8, 256, "256 is out of the range of u8"),
        (torch.bool, 1, "1 is no value of bool"),
        (torch.float32, 1j, "1j is no value of f32"),
        (torch.float16, 1e5, "100000 is out of the range of f16"),
        (torch.float8_e4m3fn, 500.0, "500 is out of the range of f8_e4m3fn"),
        (torch.complex64, 1e300, "out of the range of c64"),
        (torch.complex64, complex(0, 1e300), "out of the range of c64"),
        (torch.bits8, 1, "numbers can't be set in a bits8 tensor"),
        (torch.float32, None, "NoneType is neither a number nor a tensor"),
        (torch.float32, torch.zeros(1), "the value has shape [1], the place []"),
        (torch.float32, torch.tensor(1), "the value is i64, the tensor f32"),
    ],
)
def test_values_that_do_not_fit_are_refused(dtype: Any, value: Any, reason: str) -> None:
    tensor = torch.zeros(2, dtype=torch.uint8).view(dtype) if dtype is torch.bits8 else None
    tensor = torch.zeros(2, dtype=dtype) if tensor is None else tensor
    before = bytes(tensor.untyped_storage())
    with pytest.raises(Refusal) as refused:
        set_element(tensor, 0, value, "tensor")
    assert reason in str(refused.value)
    assert bytes(tensor.untyped_storage()) == before


def _inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(2)


@pytest.mark.parametrize(
    ("tensor", "index", "reason"),
    [
        (torch.zeros(2), 2, "out of bounds"),
        (torch.zeros(2), (0, 0), "too many indices"),
        (torch.zeros(2), [0], "whole numbers and slices"),
        (torch.zeros(2), torch.tensor(0), "whole numbers and slices"),
        (torch.zeros(1).expand(3), 0, "expanded"),
        (_inference(), 0, "inference tensor"),
        (torch.eye(2).to_sparse(), (0, 0), "plain dense"),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), 0, "plain dense"),
        (torch.zeros(2, device="meta"), 0, "only a shape"),
        (nn.LazyLinear(2).weight, 0, "first call"),
    ],
    ids=str,
)
def test_places_that_cannot_be_set_are_refused(tensor: Any, index: Any, reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        set_element(tensor, index, 1.0, "tensor")


def test_a_backward_that_needs_the_old_value_raises_as_is_said() -> None:
    weight = nn.Parameter(torch.ones(2))
    x = torch.ones(2)
    loss = (weight * x).sum()
    note = set_element(weight, 0, 5.0, "weight")  # a leaf that requires a gradient: torch refuses
    assert "weight requires a gradient" in note and "a graph that has used it" in note
    assert weight.tolist() == [5.0, 1.0] and weight.requires_grad and weight.is_leaf
    assert weight._version == 1 and "version is 1" in note

    note = set_element(x, 0, 2.0, "x")  # saved for the gradient of the weight
    assert "a graph that has saved it raises" in note
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()

    hidden = weight * 2
    note = set_element(hidden, 0, 1.0, "hidden")
    assert "through the graph that needs the old value" in note
    assert hidden.grad_fn is not None and hidden.tolist() == [1.0, 2.0]
    hidden.sum().backward()  # which doesn't need it
    assert weight.grad is not None and weight.grad.tolist() == [2.0, 2.0]
    with torch.no_grad():
        assert set_element(x, 0, 3.0, "x") == ""


def test_a_write_that_autograd_would_not_see_is_refused() -> None:
    weight, holder = nn.Parameter(torch.ones(2)), SimpleNamespace(data=torch.ones(2))
    setting, frame = Setting(View(Known()), lambda note: None), sys._getframe()
    with pytest.raises(Refusal, match="Set weight itself"):
        setting.set_expression(frame, "weight.data[0]", "5")
    assert weight.tolist() == [1.0, 1.0]
    setting.set_expression(frame, "holder.data[0]", "5")  # a tensor of this name is as any other
    assert holder.data.tolist() == [5.0, 1.0]
    detached = weight.detach()
    set_element(detached, 0, 5.0, "detached")  # shares the counter
    assert weight._version == 1
