"""Values that an editor looks at: each function stops once, with one kind of them in its frame."""

import sys

import torch
from torch import nn

torch.set_num_threads(2)


class Block(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(8, 8) for _ in range(depth))


def model():
    net = nn.Sequential(*(Block(9) for _ in range(182)))
    print(len(list(net.modules())))  # model


def tensor():
    x = torch.randn(64, 128, 768, requires_grad=True)
    print(x.shape)  # tensor


def large():
    x = torch.randn(250_000_000)
    print(x.shape)  # large


def storage():
    s = torch.zeros(10_000_000).untyped_storage()
    print(s.nbytes())  # storage


if sys.argv[1] != "many":
    {"model": model, "tensor": tensor, "large": large, "storage": storage}[sys.argv[1]]()
else:  # 200 names of 10 MB each, in the frame of the module; not a list, which is cut short
    for number in range(200):
        globals()[f"t{number}"] = torch.ones(2_500_000)
    print("200 tensors")  # many
