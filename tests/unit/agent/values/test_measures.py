"""The metrics as functions of any value: right numbers, or the reason why there is none."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorpoint.agent.values.known import Known
from tensorpoint.agent.values.measures import Measures

MEASURES = Measures(Known()).functions


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(3)


def _trained() -> nn.Module:
    module = nn.Linear(2, 1, bias=False)
    module.weight.grad = torch.tensor([[3.0, 4.0]])
    return module


def _twice() -> torch.Tensor:
    """Sparse, with two summands of one element."""
    return torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([3.0, 4.0]), (4,))


def _embedded() -> Any:
    module = nn.Embedding(4, 1, sparse=True)
    module(torch.tensor([1, 1])).sum().backward()
    return module


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("absmax", torch.tensor([1, -7]), 7),
        ("absmax", torch.tensor([True, False]), 1),
        ("absmax", torch.tensor([1.0, math.nan]), math.nan),
        ("absmax", torch.zeros(0), 0),
        ("absmax", torch.quantize_per_tensor(torch.tensor([2.0]), 0.1, 0, torch.qint8), 2),
        ("norm", torch.tensor([3, 4]), 5),
        ("norm", [torch.tensor([3.0]), torch.tensor([4])], 5),
        ("norm", _twice(), 7),
        ("zero_fraction", torch.tensor([0, 1, 2, 0]), 0.5),
        ("zero_fraction", torch.eye(4).to_sparse(), 0.75),
        ("zero_fraction", _twice(), 0.75),
        ("nonfinite", torch.tensor([1, 2]), False),
        ("nonfinite", torch.tensor([1.0, math.inf]), True),
        ("nonfinite", torch.tensor(complex(0, math.nan)), True),
        ("grad_norm", _trained(), 5),
        ("grad_norm", _embedded(), 2),
        ("no_grad", _trained(), False),
        ("no_grad", nn.Linear(2, 2), True),
    ],
)
def test_the_value_of_a_metric(name: str, value: Any, expected: Any) -> None:
    assert MEASURES[name](value) == pytest.approx(expected, nan_ok=True)


def test_of_a_distributed_tensor_this_ranks_shard_is_measured() -> None:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        shard = torch.tensor([0.0, 1.0, 2.0, 2.0])
        tensor = DTensor.from_local(shard, init_device_mesh("cpu", (2,)), [Shard(0)])
        assert tensor.shape == (8,)
        assert MEASURES["zero_fraction"](tensor) == 0.25
        assert MEASURES["norm"](tensor) == 3
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("name", ["nonfinite", "absmax", "norm", "zero_fraction"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.ones(2, device="meta"), "only a shape"),
        (_fake(), "only a shape"),
        (nn.LazyLinear(2), "no shape before"),
        (3, "no tensor in this int"),
    ],
)
def test_what_has_no_numbers_is_refused(name: str, value: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=f"{name}: .*{reason}"):
        MEASURES[name](value)


@pytest.mark.parametrize("name", ["grad_norm", "no_grad"])
def test_what_gets_no_gradient_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match="nothing in this Tensor requires a gradient"):
        MEASURES[name](torch.ones(2))
    with pytest.raises(TypeError, match="retain_grad"):
        MEASURES[name](torch.ones(2, requires_grad=True) * 2)
