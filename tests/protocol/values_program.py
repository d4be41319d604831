"""The debuggee of test_values.py: values that make stock debugpy slow, or run the user's code."""

PROGRAM = '''\
import collections
import dataclasses
import functools
import types

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

torch.manual_seed(0)
torch.set_num_threads(1)
calls = []


class Touchy(torch.Tensor):
    """Whatever is done with it is an error of the user's."""

    @property
    def shape(self):
        calls.append("shape")
        raise SystemError("shape")

    @classmethod
    def __torch_function__(cls, *args, **kwargs):
        calls.append("torch function")
        raise SystemError("torch function")

    def __repr__(self):
        calls.append("tensor repr")
        raise SystemError("repr")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 8)  # defines fc
        self.register_buffer("seen", torch.zeros(3))

    @property
    def cost(self):
        calls.append("property")
        raise SystemError("property")

    def __getattr__(self, name):
        if name == "nothing":
            calls.append("getattr")
        return super().__getattr__(name)

    def __repr__(self):
        calls.append("module repr")
        raise SystemError("repr")

    def forward(self, x):
        h = self.fc(x)  # makes h
        return h * 2  # in forward


@dataclasses.dataclass
class Batch:
    image: torch.Tensor
    label: int


class Box:
    def __repr__(self):
        raise ValueError("a broken repr")


net = Layer()
x = torch.ones(2, 4)
net(x).sum().backward()
loss = torch.tensor(0.25)
wide = torch.arange(600.0).reshape(2, 300)
wide[1, 7] = float("nan")
view = wide[0]
huge = torch.empty(250_000_000)  # a gigabyte of which no page is written
storage = torch.zeros(10_000_000).untyped_storage()
many = [torch.zeros(3) for _ in range(2000)]
pair = [torch.zeros(3), {"a": torch.ones(2, 3)}]
touchy = torch.ones(3).as_subclass(Touchy)
lazy = nn.LazyLinear(4)
sparse = torch.eye(3).to_sparse()
halves = torch.ones(2, dtype=torch.bfloat16)
on_meta = torch.empty(3, 4, device="meta")
nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
packed = pack_sequence([torch.ones(3), torch.ones(2)])
array = np.ones((2, 3), dtype=np.float32)
batch = Batch(torch.ones(3, 4), 7)
box = Box()
named = collections.namedtuple("Named", "values step")(torch.ones(3), 2)
largest = torch.ones(2, 3).max(0)
partial = functools.partial(torch.add, torch.ones(3))
space = types.SimpleNamespace(loss=loss, seen=collections.defaultdict(list, a=[torch.ones(3)]))
frozen = nn.Parameter(torch.ones(2), requires_grad=False)
with torch.inference_mode():
    inference = torch.ones(2)
print("ready")  # stop
calls.append("end")
'''
