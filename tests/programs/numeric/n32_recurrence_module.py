# expect: stop event=nonfinite.forward module=cell type=Cell step=3 op=mm
"""N32: a recurrence with a gain above 1 overflows to inf, then to inf - inf = NaN.

The sequences get longer from step to step; only the last is long enough.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Cell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.input = nn.Linear(3, width)
        self.recurrent = nn.Parameter(1.5 * torch.randn(width, width) / width**0.5)

    def forward(self, x, h):
        return self.input(x) + h @ self.recurrent  # <- op


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell(8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        h = x.new_zeros(x.shape[1], 8)
        for t in range(len(x)):
            h = self.cell(x[t], h)  # <- stop
        return self.head(h)


model = Recurrent().eval()
with torch.no_grad():
    for step, length in enumerate([5, 20, 40, 400]):
        print(step, model(torch.randn(length, 2, 3)).abs().max().item())
