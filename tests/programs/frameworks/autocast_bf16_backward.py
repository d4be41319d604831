# expect: stop event=nonfinite.backward module=root type=Sqrt step=2 op=div
"""bfloat16 autocast without a scaler: the backward of a square root at 0, between autocast layers."""

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
        self.body, self.root, self.head = nn.Linear(4, 8), Sqrt(), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.root(torch.sigmoid(self.body(x))))


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(5):
    if step == 2:
        with torch.no_grad():
            model.body.bias[3] = -500.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(8, 4)).float().pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
