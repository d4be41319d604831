# expect: stop event=nonfinite.backward module=block step=2 op=div
"""Only a block is compiled, and its backward makes the NaN that reaches the layer before it.

The compiled block is one module: it is not seen which layer inside of it was it.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Sqrt(nn.Module):
    def forward(self, x):
        return torch.sqrt(x)  # <- op


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
        self.block = torch.compile(nn.Sequential(nn.Sigmoid(), Sqrt()), backend="eager")

    def forward(self, x):
        h = self.block(self.body(x))
        return self.head(h)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    if step == 2:
        with torch.no_grad():
            model.body.bias[3] = -500.0
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
