"""What the scopes of a layer show, also of modules and tensors that are hostile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tensorpoint.agent.stepping import scopes
from tensorpoint.agent.stepping.stack import Layer
from tensorpoint.agent.values import devices, figures


class Own(nn.Module):
    """Its walks and its parameters are code of the program's."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        self.again = self.body
        self.head = nn.Linear(3, 1, bias=False)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        raise SystemError("named_parameters")

    def named_buffers(self, *args: Any, **kwargs: Any) -> Any:
        raise SystemError("named_buffers")

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x * scale


def layer_of(module: nn.Module, *args: Any, output: Any = None) -> Layer:
    return Layer(
        module=module,
        path="",
        args=args,
        kwargs={},
        output=output,
        has_output=output is not None,
    )


def test_parameters_and_buffers_are_read_past_the_programs_own_walks() -> None:
    module = Own()
    names = list(scopes.scope(layer_of(module), "Parameters"))
    assert names == [f"body.{at}.{name}" for at in (0, 1) for name in ("weight", "bias")] + [
        "head.weight"
    ]
    buffers = list(scopes.scope(layer_of(module), "Buffers"))
    assert buffers == [f"body.1.{name}" for name in ("running_mean", "running_var")] + [
        "body.1.num_batches_tracked"
    ]
    assert list(scopes.scope(layer_of(module.head), "Parameters")) == ["weight"]
    module.head(torch.ones(1, 3)).sum().backward()
    gradients = scopes.scope(layer_of(module), "Gradients")
    assert gradients["head.weight"].tolist() == [[1.0] * 3] and gradients["body.0.bias"] is None
    optimizer: Any = torch.optim.SGD(module.head.parameters())
    assert list(scopes.scope(layer_of(optimizer), "Parameters")) == ["param_groups[0]['params'][0]"]


def test_statistics_are_the_figures_of_a_hover() -> None:
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    sparse = torch.eye(2).to_sparse()
    rows = scopes.scope(
        layer_of(Own(), torch.tensor([1.0, 3.0, 0.0]), freed, output=sparse), "Statistics"
    )
    assert rows == {
        "x": "f32[3] cpu | µ 1.33 σ 1.53 [0, 3], 33.3% zero",
        "scale": "f32[4] cpu | it has no memory: that was freed, or it is zero by definition",
        "output": "f32[2, 2] sparse_coo nnz 2 cpu | µ 1 σ 0 [1, 1] (the stored values), 0.0% zero",
    }
    (large,) = scopes.scope(layer_of(Own(), torch.zeros(1 << 21)), "Statistics").values()
    assert large == "f32[2097152] cpu | ~µ 0 σ 0 [0, 0], 100.0% zero"


def test_a_device_that_is_busy_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def busy(tensor: torch.Tensor) -> devices.Unavailable:
        asked.append(1)
        return devices.Unavailable(devices.BUSY)

    monkeypatch.setattr(scopes, "is_on_cpu", lambda tensor: False)
    monkeypatch.setattr(figures, "figures_of", busy)
    tensors = [torch.ones(2), torch.ones(3)]
    rows = scopes.scope(layer_of(Own(), *tensors, output=tensors), "Statistics")
    assert len(rows) == 4 and len(asked) == 1
    assert all(text.endswith(devices.BUSY) for text in rows.values())
