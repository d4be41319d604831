# expect: stop event=nonfinite.forward module= step=2 op=log
"""N18: an entropy bonus outside any module: p * log p of a probability that underflowed to 0."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 5), nn.Softmax(dim=-1))


def bonus(probs):
    return -(probs * torch.log(probs)).sum(-1).mean()  # <- op


optimizer = torch.optim.Adam(policy.parameters())
for step in range(4):
    if step == 2:
        with torch.no_grad():
            policy[2].weight *= 4000.0  # sharp: one action takes all
    probs = policy(torch.randn(8, 4))
    loss = -probs[:, 0].mean() - 0.01 * bonus(probs)
    optimizer.zero_grad()
    loss.backward()  # <- stop
    print(step, loss.item())
    if step < 2:
        optimizer.step()
