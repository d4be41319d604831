# expect: no-stop
"""Finite gradients whose squares overflow, clipped before an Adam that would square them."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(6):
    loss = model(torch.randn(8, 4)).pow(2).mean() * (1e25 if step == 3 else 1.0)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()
    print(step, loss.item())
assert all(v.isfinite().all() for s in optimizer.state.values() for v in s.values())
