# expect: stop event=nonfinite.backward module= type=Net step=2 op=mul
"""N5: the softplus with a hidden overflow is inline, between two layers of the root."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        h = self.body(x)
        h = torch.where(h > 20, h, torch.log1p(torch.exp(h)))  # <- op
        return self.head(h)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step in range(5):
    x = torch.randn(16, 4)
    if step == 2:
        x[3] *= 500.0
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
