# expect: no-stop
"""Masked logits under no_grad, with the mask anywhere but in the layer that returns them."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
NEVER = -float("inf")


def best(logits, k):
    kth = logits.topk(k).values[..., -1:]
    return torch.where(logits < kth, NEVER, logits)


class TopK(nn.Module):
    def forward(self, logits):
        return best(logits, 3)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 6)

    def forward(self, state, legal):
        return self.head(state) + legal.log()  # of 0 for what is not legal


class Cooled(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, logits):
        return self.inner(logits) / 0.7


class Distances(nn.Module):
    def __init__(self):
        super().__init__()
        edges = torch.rand(5, 5)
        edges[edges < 0.5] = torch.inf  # where there is no edge
        self.register_buffer("edges", edges)

    def forward(self, x):
        return x - self.edges


policy, cut, distances = Policy(), Cooled(TopK()), Distances()
with torch.no_grad():
    for step in range(3):
        legal = (torch.rand(2, 6) < 0.7).float()
        legal[:, 0] = 1.0
        logits = policy(torch.randn(2, 4), legal)
        probs = cut(logits).softmax(-1)
        near = distances(torch.randn(5, 1)).softmax(-1)
        print(step, probs.sum().item(), near.nan_to_num().sum().item())
