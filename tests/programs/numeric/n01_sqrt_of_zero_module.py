# expect: stop event=nonfinite.backward module=distance type=Distance step=2 op=div
"""N1: the hand-written distance is a module; two equal points make its gradient inf * 0 = NaN."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Distance(nn.Module):
    def forward(self, left, right):
        return ((left - right) ** 2).sum(-1).sqrt()  # <- op


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
        self.distance = Distance()

    def forward(self, left, right):
        return self.distance(self.encoder(left), self.encoder(right))


model = Siamese()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(6):
    left, right = torch.randn(8, 6), torch.randn(8, 6)
    if step == 2:
        right[5] = left[5]
    loss = (model(left, right) - 1.0).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
