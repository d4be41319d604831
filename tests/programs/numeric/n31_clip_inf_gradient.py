# expect: stop event=nonfinite.backward module=gain type=SqrtGain step=2 op=div
"""N31: one infinite gradient makes clip_grad_norm_ write NaN into it and 0 into all others.

The square root of `scale` has the gradient inf at 0, which the third step reaches: that is the stop,
before anything is clipped. Afterwards only `gain.scale` is NaN.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class SqrtGain(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x * self.scale.sqrt()  # <- op


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.gain = SqrtGain()
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        h = self.body(x)
        h = self.gain(h)
        return self.head(h)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    if step == 2:
        with torch.no_grad():
            model.gain.scale[1] = 0.0  # the user prunes a channel
    loss = model(torch.randn(16, 3)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(step, loss.item(), norm.item())
