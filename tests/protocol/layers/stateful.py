"""A model that is not the same twice: random, running statistics, a counter, a cache, a buffer."""

import random

import torch
from torch import nn


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.linear = nn.Linear(4, 4)
        self.calls = 0
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x, seen):
        self.calls += 1
        seen.append(len(seen))
        h = self.drop(self.norm(x))
        self.total += h.detach().sum(0)
        h = h + random.random() + torch.rand(4)
        return self.linear(h).mul_(1.5)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = Noisy(), Noisy(), nn.Linear(4, 1)

    def forward(self, x, seen):
        return self.head(self.second(self.first(x, seen), seen))


torch.manual_seed(0)
random.seed(0)
net, seen = Net(), []
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for _ in range(5):
    loss = net(torch.randn(8, 4), seen).pow(2).mean()
    print("loss", loss.item().hex())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
state = [value.double().sum().item().hex() for value in net.state_dict().values()]
print("result", state, net.first.calls, seen, random.random(), torch.rand(1).item())
