# expect: stop event=nonfinite.forward module=block type=Block step=2 op=sqrt
"""A block is called through .forward(): no hook runs for it, its frame tells of it.

The NaN that the block makes first comes out of `head`.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 8)

    def forward(self, x):
        return torch.sqrt(self.linear(x) + 2.0)  # <- op


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        h = self.block.forward(x)
        return self.head(h)  # <- stop


model = Model().eval()
with torch.no_grad():
    for step in range(4):
        x = torch.rand(8, 4)
        if step == 2:
            x[3] *= 100.0
        print(step, model(x).mean().item())
