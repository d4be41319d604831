# expect: stop event=nonfinite.backward module=0 type=Linear step=2 op=div
"""The whole model is compiled: gradients still arrive one by one, at the parameters.

Where they were made inside the compiled region is not seen.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Sqrt(nn.Module):
    def forward(self, x):
        return torch.sqrt(x)  # <- op


model = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), Sqrt(), nn.Linear(8, 1))
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    if step == 2:
        with torch.no_grad():
            model[0].bias[3] = -500.0
    loss = compiled(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
