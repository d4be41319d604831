# expect: no-stop
"""N2: torch's own norm at 0 makes a NaN in its backward and masks it: the gradients are finite."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, left, right):
        return torch.linalg.vector_norm(self.encoder(left) - self.encoder(right), dim=-1)


model = Siamese()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    left, right = torch.randn(8, 6), torch.randn(8, 6)
    if step == 2:
        right[5] = left[5]
    loss = (model(left, right) - 1.0).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
assert all(p.isfinite().all() for p in model.parameters())
