# expect: stop event=nonfinite.forward module=log type=Log step=2 op=log
"""Nobody looks at the NaN loss of step 2: backward and optimizer make all parameters NaN.

From step 3 on `linear` is the first to have it, by its parameters. That follows from what was told.
"""

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
        h = self.linear(x)
        h = self.log(h.sigmoid() + offset)  # <- stop
        return self.head(h)


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    loss = model(torch.randn(8, 4), -2.0 if step == 2 else 0.0).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
