# expect: stop event=nonfinite.forward module= step=2 op=log
"""torch.compile(backend="eager") of a model whose NaN is made deep inside the compiled region.

No hook of a layer needs to run in there: the stop is at the border of the region, the root.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Log(nn.Module):
    def forward(self, x):
        return torch.log(x + 2.0)  # <- op


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.log = Log()

    def forward(self, x):
        return self.log(self.linear(x))


model = nn.Sequential(Block(), nn.Linear(4, 4)).eval()
compiled = torch.compile(model, backend="eager")
with torch.no_grad():
    for step in range(5):
        x = torch.rand(8, 4)
        if step == 2:
            x[3] *= 100.0
        print(step, compiled(x).mean().item())  # <- stop
