import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Always(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 1)

    def forward(self, x):
        y = self.fc(x)
        # nan warning nan-reduction the standard deviation of one element is NaN, at all sizes
        return y / y.std(-1, keepdim=True)


class Batch(nn.Module):
    # tensorpoint: x: f32[B, 10]
    def forward(self, x):
        # nan hint nan-reduction the variance of one element is NaN, where B = 1
        return (x - x.mean(0)) / (x.var(0) + 1e-5)


class Limited(nn.Module):
    # tensorpoint: x: f32[B, 10], B >= 2
    def forward(self, x):
        return (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt() + x.var(0, unbiased=False)


class Rest(nn.Module):
    # tensorpoint: x: f32[B, T, 10]
    def forward(self, x):
        # nan hint nan-reduction the mean of no element is NaN, where T = 1
        return x[:, 1:].mean(1)


class Masked(nn.Module):
    # tensorpoint: x: f32[B, T, 16], padding: bool[B, T]
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x, padding):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / math.sqrt(16)
        scores = scores.masked_fill(padding[:, None], float("-inf"))
        future = torch.triu(torch.ones(x.size(1), x.size(1)), diagonal=0).bool()
        scores = scores.masked_fill(future, float("-inf"))
        # nan warning masked-row a row of this softmax is masked wholly
        return F.softmax(scores, -1) @ v


class Causal(nn.Module):
    # tensorpoint: x: f32[B, T, 16], padding: bool[B, T], keep: i64[B, T]
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x, padding, keep):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / math.sqrt(16)
        scores = scores.masked_fill(padding[:, None] | (keep[:, None] == 0), float("-inf"))
        future = torch.triu(torch.ones(x.size(1), x.size(1)), diagonal=1).bool()
        return F.softmax(scores.masked_fill(future, float("-inf")), -1) @ v
