# expect: stop event=nonfinite.forward module=tower type=Tower step=2 op=reciprocal
"""A layer returns a dict with a list in it; one tensor there is inf, and the parent ignores it."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)

    def forward(self, x):
        h = self.body(x)
        return {"hidden": h, "count": len(x), "stats": [h.mean(), 1.0 / x.amin()]}  # <- op


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = Tower()
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        out = self.tower(x)  # <- stop
        return {"logits": self.head(out["hidden"])}


model = Model().eval()
with torch.no_grad():
    for step in range(4):
        x = torch.rand(8, 4) + 0.1
        if step == 2:
            x[3, 0] = 0.0
        print(step, model(x)["logits"].mean().item())
