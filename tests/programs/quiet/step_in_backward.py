# expect: no-stop
"""Optimizers that step inside backward, in hooks on the parameters, and free each gradient there."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
optimizers = {p: torch.optim.AdamW([p], lr=1e-2, foreach=False) for p in model.parameters()}


def step_now(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step_now)
for step in range(6):
    loss = (model(torch.randn(8, 4)) - 1.0).pow(2).mean()
    loss.backward()
    assert all(p.grad is None for p in model.parameters())
    print(step, loss.item())
