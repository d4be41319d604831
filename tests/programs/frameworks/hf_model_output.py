# expect: stop event=nonfinite.forward module=tower type=Tower step=2 op=sqrt
# needs: transformers
"""A layer returns a transformers ModelOutput; only one tensor of a tuple inside it is NaN."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers.utils import ModelOutput

torch.manual_seed(0)
torch.set_num_threads(1)


@dataclass
class TowerOutput(ModelOutput):
    last_hidden_state: torch.Tensor | None = None
    scales: tuple[torch.Tensor, ...] | None = None


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)

    def forward(self, x):
        h = self.body(x)
        return TowerOutput(last_hidden_state=h, scales=(x.norm(dim=-1), x.sum(-1).sqrt()))  # <- op


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = Tower()
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        out = self.tower(x)  # <- stop
        return self.head(out.last_hidden_state) * out.scales[0][:, None]


model = Model().eval()
with torch.no_grad():
    for step in range(4):
        x = torch.rand(8, 4)
        if step == 2:
            x[3] -= 5.0
        print(step, model(x).mean().item())
