# expect: stop event=nonfinite.forward module=norm type=Normalize step=2 op=div
"""One layer is called three times per forward; its second call of step 2 makes the NaN."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Normalize(nn.Module):
    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True)  # <- op


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix, self.head = Normalize(), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, a, b):
        a = self.norm(a)
        b = self.norm(b)  # <- stop
        c = self.norm(self.mix(a + b))
        return self.head(c)


model = Model().eval()
with torch.no_grad():
    for step in range(4):
        a, b = torch.randn(8, 4), torch.randn(8, 4)
        if step == 2:
            b[3] = 0.0
        print(step, model(a, b).mean().item())
