# expect: stop event=nonfinite.forward module=blocks.1.log type=Log step=4 op=log
"""A forward raises three modules deep, the loop catches it and goes on; a NaN comes two steps on.

The call that raised was step 2. Had it stayed on the stack of modules, `blocks.1` would seem to be
inside `blocks.0`, or no later call a root call.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Log(nn.Module):
    def forward(self, x):
        if x.shape[-1] != 8:
            raise ValueError("eight features, please")
        return torch.log(x)  # <- op


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift, self.log = nn.Identity(), Log()

    def forward(self, x, offset):
        return self.log(self.shift(x) + offset)  # <- stop


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        x = self.blocks[0](x, offset=2.0)
        return self.blocks[1](x, offset=0.5)


model = Model().eval()
for step in range(6):
    x = torch.rand(4, 5 if step == 2 else 8)
    if step == 4:
        x[1, 3] = -1.5
    try:
        print(step, model(x).mean().item())
    except ValueError as error:
        print(step, error)
