# expect: no-stop
"""WGAN-GP with torch's own norm: double backward, and a critic whose gradient is exactly 0 once."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

critic = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))
optimizer_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
for step in range(8):
    real, fake = torch.randn(8, 4), generator(torch.randn(8, 3))
    if step == 3:
        with torch.no_grad():
            critic[0].weight.zero_()
    mixed = torch.lerp(real, fake.detach(), torch.rand(8, 1)).requires_grad_()
    (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    penalty = ((slope.norm(2, dim=1) - 1.0) ** 2).mean()
    loss = critic(fake.detach()).mean() - critic(real).mean() + 10.0 * penalty
    optimizer_c.zero_grad()
    loss.backward()
    optimizer_c.step()
    optimizer_g.zero_grad()
    (-critic(fake).mean()).backward()
    optimizer_g.step()
    print(step, loss.item())
assert all(p.isfinite().all() for p in (*critic.parameters(), *generator.parameters()))
