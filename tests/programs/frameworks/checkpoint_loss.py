# expect: stop event=nonfinite.backward module= type=Linear step=2 op=div
# expect: stop event=nonfinite.backward module= type=Linear step=4 op=div
"""A loss outside any module is checkpointed, first without, then with use_reentrant=True: sqrt' at 0."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Linear(6, 4, bias=False)


def rmse(output, target):
    error = output - target
    return error.square().sum(-1).sqrt().mean()  # <- op


optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(6):
    x, target = torch.randn(8, 6), torch.randn(8, 4)
    if step in (2, 4):
        x[3] = target[3] = 0.0
    loss = checkpoint(rmse, model(x), target, use_reentrant=step > 3)
    optimizer.zero_grad()
    loss.backward()  # <- stop
    if model.weight.grad.isfinite().all():
        optimizer.step()
    print(step, loss.item())
