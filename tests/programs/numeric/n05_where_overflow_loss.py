# expect: stop event=nonfinite.backward module= type=Linear step=2 op=mul
"""N5: a loss function with a hand-written softplus, on the logits of a model that is one layer."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Linear(4, 3)


def softplus(x):
    return torch.where(x > 20, x, torch.log1p(torch.exp(x)))  # <- op


optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step in range(5):
    x, label = torch.randn(16, 4), torch.randint(0, 2, (16, 3)).float()
    if step == 2:
        x[3] *= 500.0
    logits = model(x)
    loss = (softplus(logits) - label * logits).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
