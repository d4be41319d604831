# expect: no-stop
"""N22: p-norms with p = 0.5 and p = 1.5 of vectors with zeros; torch masks the infinite part."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class SparsityPenalty(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, h):
        return torch.norm(h, p=self.p, dim=-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 12), nn.ReLU())
        self.sharp, self.smooth = SparsityPenalty(0.5), SparsityPenalty(1.5)
        self.head = nn.Linear(12, 1)

    def forward(self, x):
        h = self.body(x)
        return self.head(h), self.sharp(h).mean() + self.smooth(h).mean()


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    prediction, penalty = model(torch.randn(16, 4))
    loss = prediction.pow(2).mean() + 1e-3 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
assert all(p.isfinite().all() for p in model.parameters())
