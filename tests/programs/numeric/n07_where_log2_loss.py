# expect: stop event=nonfinite.backward module= type=Sequential step=2 op=mul
"""N7: an entropy regularizer outside any module guards p * log2(p) at p = 0 by where."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(dim=-1))


def entropy(p):
    return -torch.where(p > 0, p * torch.log2(p), torch.zeros_like(p)).sum(-1).mean()  # <- op


optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    x, label = torch.randn(16, 4), torch.randint(0, 3, (16,))
    if step == 2:
        x[7] *= 1e5  # a confident sample: other probabilities underflow to 0
    p = model(x)
    loss = (1 - p.gather(-1, label[:, None])).mean() - 0.01 * entropy(p)
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
