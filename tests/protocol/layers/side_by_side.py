"""Two models that run on two threads, each in a loop of Python in its forward."""

import threading
import time

import torch
from torch import nn


class Slow(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.inner = kind()

    def forward(self, x):
        both_inside.wait()
        while not released.is_set():
            time.sleep(0.001)
        return self.inner(x)


class One(Slow):
    pass


class Other(Slow):
    pass


both_inside, released = threading.Barrier(2), threading.Event()
one, other = One(nn.ReLU), Other(nn.Tanh)
thread = threading.Thread(target=lambda: other(torch.ones(2)), name="worker")
thread.start()
one(torch.ones(3))
thread.join()
print("done")
