# expect: stop event=nonfinite.update module=body type=Linear step=0 op=addcdiv_
"""N29: Adam's eps = 1e-8 is 0 in float16, so a zero gradient updates its weight by 0/0 = NaN.

The first feature is always 0: so is the gradient of its column of weights.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.head(h)


model = Net().half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    x = torch.randn(16, 4)
    x[:, 0] = 0.0
    loss = (100.0 * model(x.half())).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <- stop
    print(step, loss.item())
