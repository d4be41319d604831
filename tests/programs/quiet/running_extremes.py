# expect: no-stop
"""Buffers that start at +inf and -inf: running minimum and maximum, as calibration keeps them."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("low", torch.tensor(float("inf")))
        self.register_buffer("high", torch.tensor(float("-inf")))
        self.enabled = False

    def forward(self, x):
        if self.enabled:
            self.low.copy_(torch.minimum(self.low, x.detach().min()))
            self.high.copy_(torch.maximum(self.high, x.detach().max()))
        return x


model = nn.Sequential(nn.Linear(4, 8), Observer(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    model[1].enabled = step >= 3
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), model[1].low.item(), model[1].high.item())
