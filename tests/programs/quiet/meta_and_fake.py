# expect: no-stop
"""Modules run on the meta device and under FakeTensorMode: there are no values to look at."""

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

torch.manual_seed(0)
torch.set_num_threads(1)


def build():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2))


with torch.device("meta"):
    model = build()
    print(model(torch.randn(3, 4)).shape)
with FakeTensorMode():
    print(build()(torch.randn(3, 4)).shape)

model = build()
loss = model(torch.randn(3, 4)).pow(2).sum()
loss.backward()
print(loss.item())
