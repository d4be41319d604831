"""A test to debug, in which a NaN is made."""

import torch
from torch import nn


class Gate(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x)


class TestGate:
    def test_positive(self) -> None:
        assert Gate()(torch.ones(2)).isfinite().all()

    def test_negative(self) -> None:
        out = Gate()(torch.tensor([1.0, -1.0]))  # call gate
        assert out.isfinite().all()
