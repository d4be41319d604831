# expect: stop event=nonfinite.update module=0 type=Linear step=2 op=_fused_adamw_
"""The fused AdamW: what its one kernel writes is seen after the step, here by a lr of inf."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01), fused=True)
for step in range(5):
    if step == 2:
        optimizer.param_groups[0]["lr"].div_(0.0)
    loss = model(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <- stop
    print(step, loss.item())
