# expect: stop event=nonfinite.backward module=net.2 type=Linear step=3 op=div recorded=div
"""A gradient penalty with a hand-written norm: where the gradient is 0, its own gradient is NaN.

The first backward (create_graph=True) is fine, the second makes the NaN. It comes to the parameters
through the first one's graph and not through outputs of modules: the stop is at the first of them.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x)


critic = Critic()
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
for step in range(5):
    if step == 3:
        with torch.no_grad():
            critic.net[0].weight.zero_()  # the critic no longer looks at its input
    x = torch.randn(8, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    loss = ((slope.pow(2).sum(-1).sqrt() - 1.0) ** 2).mean()  # <- op
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
