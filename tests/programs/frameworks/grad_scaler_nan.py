# expect: stop event=nonfinite.backward module=root type=Sqrt step=5 op=div
"""A NaN that no scale cures: GradScaler skips and halves until the scale is 1, and that is the stop.

Up to there it is like any probing. Every step from the third on has it.
"""

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
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
for step in range(8):
    if step == 2:
        with torch.no_grad():
            model.body.bias[3] = -500.0
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(torch.randn(8, 4)).float().pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()  # <- stop
    scaler.step(optimizer)
    scaler.update()
    print(step, loss.item(), scaler.get_scale())
assert all(p.isfinite().all() for p in model.parameters())
