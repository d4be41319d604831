# expect: stop event=nonfinite.backward module=root type=Sqrt step=2 op=div
"""Encoder and head have optimizers of their own: the NaN that both write is one fault."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Sqrt(nn.Module):
    def forward(self, x):
        return torch.sqrt(x)  # <- op


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.root, self.head = nn.Linear(4, 8), Sqrt(), nn.Linear(8, 1)

    def forward(self, x):
        h = self.encoder(x).sigmoid()
        return self.head(self.root(h))


model = Net()
slow = torch.optim.SGD(model.encoder.parameters(), lr=0.001)
fast = torch.optim.AdamW(model.head.parameters(), lr=0.01)
for step in range(5):
    x = torch.randn(8, 4)
    if step == 2:
        with torch.no_grad():
            model.encoder.bias[1] = -200.0  # the sigmoid underflows to 0
    loss = model(x).pow(2).mean()
    for optimizer in (slow, fast):
        optimizer.zero_grad()
    loss.backward()  # <- stop
    for optimizer in (slow, fast):
        optimizer.step()
    print(step, loss.item())
