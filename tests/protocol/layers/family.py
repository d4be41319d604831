"""A model that is called here and in a process of its own; the last call makes a NaN."""

import multiprocessing

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.shift = nn.Linear(4, 4), nn.Sigmoid(), 0.0

    def forward(self, x):
        h = self.up(x)
        h = self.act(h)  # inside of a block
        return (h + self.shift).log()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x):
        return self.second(self.first(x))


torch.manual_seed(0)
net = Net()


def child():
    torch.set_num_threads(1)
    net(torch.ones(1, 4))


if __name__ == "__main__":
    net(torch.ones(1, 4))
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    net.first.shift = -2.0
    net(torch.ones(1, 4))
    print("done")
