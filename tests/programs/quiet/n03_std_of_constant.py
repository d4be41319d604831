# expect: no-stop
"""N3: the standard deviation of a constant is 0; its infinite derivative is masked by torch."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Standardize(nn.Module):
    def forward(self, x):
        return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-3)


model = nn.Sequential(nn.Linear(4, 8, bias=False), Standardize(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    x = torch.randn(8, 4)
    if step >= 2:
        x[3] = 0.0  # eight equal activations: std is 0
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
assert all(p.isfinite().all() for p in model.parameters())
