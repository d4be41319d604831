# expect: stop event=nonfinite.update module=body type=Linear step=2 op=addcmul_
"""A gradient of 1e24 is finite, its square is not: Adam's running average is inf from then on.

The update is x / inf = 0, so the parameters stay finite and the layer no longer learns.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        h = self.body(x)
        return self.head(torch.tanh(h))


model = Net()
optimizer = torch.optim.Adam(model.body.parameters(), lr=1e-3)
for step in range(5):
    loss = model(torch.randn(16, 4)).pow(2).mean()
    if step == 2:
        loss = loss * 1e25  # a weight in the wrong unit
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <- stop
    print(step, loss.item())
assert all(p.isfinite().all() for p in model.parameters())
