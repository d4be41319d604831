# expect: stop event=nonfinite.backward module= type=Sequential step=3 op=div recorded=div
"""N1: a loss function outside any module has the root of a squared error, which is 0 for a sample.

The model copies a target exactly (both are 0), so the error of that sample is.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4, bias=False))


def rmse(output, target):
    return ((output - target) ** 2).sum(-1).sqrt().mean()  # <- op


optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(6):
    x, target = torch.randn(8, 6), torch.randn(8, 4)
    if step == 2:
        with torch.no_grad():
            target[3] = model(x)[3]
    loss = rmse(model(x), target)
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
