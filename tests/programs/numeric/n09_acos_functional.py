# expect: stop event=nonfinite.backward module= type=Net step=2 op=rsqrt
"""N9: acos of a clamped cosine inline: inf * 0, in the gradient of the layer before it."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        h = self.body(x)
        angle = torch.acos(h.clamp(-1.0, 1.0))  # <- op
        return self.head(angle)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    if step == 2:
        with torch.no_grad():  # the user starts a unit over, with a constant
            model.body.weight[1], model.body.bias[1] = 0.0, 1.0
    loss = model(torch.randn(8, 3) * 0.1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
