# expect: stop event=nonfinite.backward module=norm type=Norm step=0 op=div
"""Reentrant checkpoints nested so deep that autograd goes on in a thread of its own.

That thread has no Python frame of the program: the line shown is the one of the main thread, which
waits in backward(). On a GPU every backward is like that.
"""

import sys
import threading

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

sys.setrecursionlimit(20_000)
torch.manual_seed(0)
torch.set_num_threads(1)
threads = set()


class Norm(nn.Module):
    def forward(self, x):
        threads.add(threading.current_thread())
        return (x * x).sum(-1, keepdim=True).sqrt()  # <- op


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(4, 4), Norm(), nn.Linear(1, 1)
        for parameter in self.body.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x):
        return self.nested(x, 75)

    def nested(self, x, depth):
        if depth:
            return checkpoint(self.nested, x, depth - 1, use_reentrant=True)
        return self.head(self.norm(self.body(x)))


model = Net()
loss = model(torch.randn(8, 4, requires_grad=True)).sum()
loss.backward()  # <- stop
assert len(threads) == 2, threads
print(loss.item())
