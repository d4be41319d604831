# expect: stop event=nonfinite.forward module= step=2 op=log
"""A prior on the weights is computed before the model is called, and is part of the loss."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
scale = nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.01)
for step in range(4):
    if step == 2:
        with torch.no_grad():
            scale[1] = 0.0
    prior = scale.abs().log().square().sum()  # <- op
    loss = model(torch.randn(8, 6)).square().mean() + prior
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
