# expect: no-stop
"""Batches and features of size 0: nothing in them is non-finite, though their mean would be."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Select(nn.Module):
    def forward(self, x, keep):
        return x[keep]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.select = Select()
        self.norm = nn.LayerNorm(8)
        self.none = nn.Parameter(torch.empty(0))
        self.head = nn.Linear(8, 2)

    def forward(self, x, keep):
        return self.head(self.norm(self.select(self.body(x), keep)))


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(0 if step == 1 else 6, 4)
    keep = torch.zeros(len(x), dtype=torch.bool) if step == 2 else torch.ones(len(x)).bool()
    out = model(x, keep)
    loss = out.pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, tuple(out.shape), loss.item())
