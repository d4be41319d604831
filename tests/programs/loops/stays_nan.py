# expect: stop event=nonfinite.forward module=log type=Log step=2 op=log
# expect: stop event=nonfinite.forward module=log type=Log step=7 op=log
"""The same layer gives NaN in steps 2 to 4 and again in 7: a stop each time that it turns NaN."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Log(nn.Module):
    def forward(self, x):
        return torch.log(x)  # <- op


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.log, self.head = nn.Linear(4, 4), Log(), nn.Linear(4, 1)

    def forward(self, x, offset):
        h = self.linear(x).sigmoid() + offset
        h = self.log(h)  # <- stop
        return self.head(h)


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(9):
    offset = -2.0 if step in (2, 3, 4, 7) else 0.0
    loss = model(torch.randn(8, 4), offset).pow(2).mean()
    print(step, loss.item())
    if loss.isfinite():
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
