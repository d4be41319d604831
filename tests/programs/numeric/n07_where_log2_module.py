# expect: stop event=nonfinite.backward module=gain type=SafeLog2 step=2 op=div
"""N7: where guards a log2 at 0, but the inactive branch has the gradient inf * 0 = NaN."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class SafeLog2(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, torch.log2(x), torch.zeros_like(x))  # <- op


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.gain = SafeLog2()
        self.head = nn.Linear(8, 1)

    def forward(self, x, mask):
        h = torch.sigmoid(self.body(x)) * mask
        h = self.gain(h)
        return self.head(h)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    x, mask = torch.randn(16, 4), torch.ones(16, 8)
    if step == 2:
        mask[4, 5] = 0.0
    loss = model(x, mask).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
