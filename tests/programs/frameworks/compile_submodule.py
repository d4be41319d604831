# expect: stop event=nonfinite.forward module=block step=2 op=log
"""Only a block is compiled: the border of the compiled region is a child of the eager root."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return torch.log(self.linear(x) + 2.0)  # <- op


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.block = torch.compile(Block(), backend="eager")
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        h = self.embed(x)
        h = self.block(h)  # <- stop
        return self.head(h)


model = Model().eval()
with torch.no_grad():
    for step in range(5):
        x = torch.randn(8, 4)
        if step == 2:
            x[3] *= 100.0
        print(step, model(x).mean().item())
