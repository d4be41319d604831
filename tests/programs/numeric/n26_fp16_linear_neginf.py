# expect: stop event=nonfinite.forward module=ff.2 type=Linear step=2 op=addmm
"""N26: an nn.Linear overflows float16 to -inf only: not a mask, though it looks like one."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.ff = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        h = self.ff(x)  # <- stop
        h = h - h.amax(-1, keepdim=True)
        return self.head(h)


model = Model()
with torch.no_grad():
    model.ff[2].weight.mul_(500.0)
model = model.half().eval()
with torch.no_grad():
    for step in range(4):
        x = torch.randn(4, 8)
        if step == 2:
            x[1] *= 1000.0
        print(step, model(x.half()).float().mean().item())
