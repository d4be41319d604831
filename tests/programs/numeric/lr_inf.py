# expect: stop event=nonfinite.update module=0 type=Linear step=3 op=mul_
"""An inverse square root schedule counts from 0 again after a restart: the learning rate is inf."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
restart = 4
for step in range(1, 7):
    count = torch.tensor(float(step if step < restart else step - restart))
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * count.rsqrt().item()
    loss = model(torch.randn(16, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <- stop
    print(step, loss.item(), optimizer.param_groups[0]["lr"])
