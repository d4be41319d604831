# expect: no-stop
"""Scratch memory from torch.empty is NaN until it is written (deterministic mode fills it so)."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


class Interleave(nn.Module):
    def forward(self, x, y):
        out = torch.empty(len(x), 2 * x.shape[1])
        out[:, 0::2] = x
        out[:, 1::2] = y
        return out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 8), nn.Linear(4, 8)
        self.interleave = Interleave()
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        scratch = x.new_empty(64, 8)
        assert scratch.isnan().all()
        scratch[: len(x)] = self.left(x)
        return self.head(self.interleave(self.left(x), self.right(x)))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(4):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
with torch.no_grad():
    print(model(torch.randn(8, 4)).sum().item())
