# expect: stop event=nonfinite.forward module=block.log type=Log step=2 op=log
"""A block is called through .forward(); the layer in it that makes the NaN is called as usual."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Log(nn.Module):
    def forward(self, x):
        return torch.log(x)  # <- op


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 8)
        self.log = Log()

    def forward(self, x):
        return self.log(self.linear(x) + 2.0)  # <- stop


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.block.forward(x))


model = Model().eval()
with torch.no_grad():
    for step in range(4):
        x = torch.rand(8, 4)
        if step == 2:
            x[3] *= 100.0
        print(step, model(x).mean().item())
