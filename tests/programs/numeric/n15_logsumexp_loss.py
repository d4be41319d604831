# expect: stop event=nonfinite.forward module= step=2 op=logsumexp
"""N15: logsumexp over no allowed label in a loss function: -inf, and NaN gradients behind it."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))


def likelihood(scores, allowed, gold):
    total = torch.logsumexp(scores.masked_fill(~allowed, float("-inf")), dim=-1)  # <- op
    return (total - scores.gather(-1, gold[:, None]).squeeze(-1)).mean()


optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    x, gold = torch.randn(8, 6), torch.randint(0, 4, (8,))
    allowed = torch.ones(8, 4, dtype=torch.bool)
    allowed[:, 3] = False
    if step == 2:
        allowed[6] = False
    loss = likelihood(model(x), allowed, gold)
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
