# expect: stop event=nonfinite.backward module= step=2 op=div
"""N31: the parameter with the infinite gradient is the loss's own: the weight of one of its terms."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
weights = nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([*model.parameters(), weights], lr=0.01)
for step in range(4):
    if step == 2:
        with torch.no_grad():
            weights[1] = 0.0  # the user switches a term off
    terms = model(torch.randn(16, 3)).pow(2).mean(0)
    loss = (terms * weights.sqrt()).sum()  # <- op
    optimizer.zero_grad()
    loss.backward()  # <- stop
    norm = torch.nn.utils.clip_grad_norm_([*model.parameters(), weights], 1.0)
    optimizer.step()
    print(step, loss.item(), norm.item())
