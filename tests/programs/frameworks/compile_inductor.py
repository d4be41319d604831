# expect: stop event=nonfinite.forward module= step=2 op=log
# needs: c++
"""torch.compile(backend="inductor"); the NaN is made at the end of the root's own forward."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return torch.log(self.net(x) + 2.0)  # <- op


model = Model().eval()
compiled = torch.compile(model, backend="inductor")
with torch.no_grad():
    for step in range(5):
        x = torch.randn(8, 4)
        if step == 2:
            x[3] *= 100.0
        print(step, compiled(x).mean().item())  # <- stop
