# expect: stop event=nonfinite.backward module=2 type=Sqrt step=5 op=div
"""Four micro-batches to a step: the second of the second step has a NaN gradient, which stays.

The sum in .grad is NaN through the micro-batches after it as well; that is no news.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Sqrt(nn.Module):
    def forward(self, x):
        return torch.sqrt(x)  # <- op


model = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), Sqrt(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    optimizer.zero_grad()
    for micro in range(4):
        x = torch.randn(8, 4)
        if (step, micro) == (1, 1):
            x[2] = -1e6 * model[0].weight[3].detach()  # the sigmoid underflows to 0
        loss = model(x).pow(2).mean() / 4
        loss.backward()  # <- stop
    finite = all(p.grad.isfinite().all() for p in model.parameters())
    if finite:
        optimizer.step()
    print(step, loss.item(), finite)
