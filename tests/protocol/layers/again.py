"""Forwards that are hard to leave, and one that can't be run again."""

import torch
from torch import nn

calls = []


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.b(self.a(x))


class Swallows(nn.Module):
    def __init__(self):
        super().__init__()
        self.pair, self.last = Pair(), nn.Linear(2, 2)

    def forward(self, x):
        try:
            h = self.pair(x)
        except:  # noqa: E722
            print("caught")
            h = x
        return self.last(h)


class Once(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        calls.append(self)
        if len(calls) > 1:
            raise ValueError("only once")
        return self.b(self.a(x))


torch.manual_seed(0)
swallows, once = Swallows(), Once()
print(swallows(torch.ones(1, 2)))
print(once(torch.ones(1, 2)))
print(swallows(torch.ones(1, 2)))
