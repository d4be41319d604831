"""Modules that attend, as users write them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Attends(nn.Module):
    """Attention as users write it, by the fused function."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = (
            part.view(rows, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(width, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(rows, length, width)


class ByHand(Attends):
    """The same by a softmax, in one of its spellings."""

    def __init__(self, softmax: Any) -> None:
        super().__init__()
        self.softmax = softmax

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = (
            part.view(rows, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(width, -1)
        )
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = self.softmax(scores.masked_fill(hidden, float("-inf"))) @ v
        return mixed.transpose(1, 2).reshape(rows, length, width)
