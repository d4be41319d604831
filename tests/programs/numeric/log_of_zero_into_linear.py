# expect: stop event=nonfinite.forward module= type=Net step=1 op=log
"""A layer with positive weights hands on a log(0) that is -inf throughout: no mask, no NaN."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.mix = nn.Linear(4, 4), nn.Linear(4, 2)
        with torch.no_grad():
            self.mix.weight.abs_()

    def forward(self, x):
        counts = self.body(x).abs() * x.abs().sum()
        return self.mix(torch.log(counts))  # <- stop


net = Net()
for step in range(3):
    x = torch.zeros(3, 4) if step == 1 else torch.randn(3, 4)
    print(step, net(x).max().item())
