# expect: stop event=nonfinite.backward module= type=Linear step=11 op=div
"""A critic's loss with a gradient penalty, by sqrt: one graph goes through the critic twice."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

critic = nn.Linear(4, 1, bias=False)
optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)


def penalty(x):
    score = critic(x)
    (slope,) = torch.autograd.grad(score, x, torch.ones_like(score), create_graph=True)
    length = slope.square().sum(-1).sqrt()  # <- op
    return (length - 1.0).square().mean()


for step in range(5):
    if step == 3:
        with torch.no_grad():
            critic.weight.zero_()
    real, fake = torch.randn(8, 4), torch.randn(8, 4)
    mixed = (real + fake).div(2.0).requires_grad_()
    loss = critic(fake).mean() - critic(real).mean() + 10.0 * penalty(mixed)
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
