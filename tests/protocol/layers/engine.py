"""A backward pass that goes on on a thread of autograd's own, as all do on CUDA."""

import sys
import threading

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

sys.setrecursionlimit(20_000)
torch.manual_seed(0)
torch.set_num_threads(1)
threads = set()


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        threads.add(threading.current_thread())
        gradient = gradient * 2  # in its backward
        return gradient.clone()


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(Double.apply(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = Body(), nn.Linear(4, 1)

    def forward(self, x):
        return self.nested(x, 80)

    def nested(self, x, depth):
        if depth:
            return checkpoint(self.nested, x, depth - 1, use_reentrant=True)
        return self.head(self.body(x))


def train():
    model = Net()
    loss = model(torch.randn(8, 4, requires_grad=True)).sum()
    loss.backward()  # waits here
    total = sum(p.grad.sum().item() for p in model.parameters())
    print("total", total)


train()
assert threading.main_thread() not in threads, threads
