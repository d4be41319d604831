# expect: stop event=nonfinite.backward module= type=Net step=2 op=div
"""N31: the infinite gradient is that of a parameter of the root, used inline in its forward."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        h = self.body(x)
        h = h * self.scale.sqrt()  # <- op
        return self.head(h)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    if step == 2:
        with torch.no_grad():
            model.scale[1] = 0.0  # the user prunes a channel
    loss = model(torch.randn(16, 3)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(step, loss.item(), norm.item())
