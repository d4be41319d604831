# expect: stop event=nonfinite.input module= type=Scaled step=2
"""The root itself owns the parameter that is NaN: the stop is where the root is called."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.log_scale = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return self.net(x) * self.log_scale.exp()


model = Scaled().eval()
with torch.no_grad():
    for step, factor in enumerate([1.0, 2.0, 0.0, 0.0]):
        if step == 2:
            model.log_scale.copy_(torch.zeros(4) / factor)
        print(step, model(torch.randn(3, 4)).sum().item())  # <- stop
