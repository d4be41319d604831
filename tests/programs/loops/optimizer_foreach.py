# expect: stop event=nonfinite.update module=2 type=Linear step=2 op=_foreach_mul_
"""The foreach AdamW: one parameter of many is written bad, by a weight decay that is a typing error."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
optimizer = torch.optim.AdamW(groups, lr=0.01, foreach=True)
for step in range(5):
    if step == 2:
        optimizer.param_groups[1]["weight_decay"] = 1e42
    loss = model(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <- stop
    print(step, loss.item())
