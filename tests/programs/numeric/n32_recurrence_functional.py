# expect: stop event=nonfinite.forward module= type=Recurrent step=3 op=mm
"""N32: the exploding recurrence written inline; the layer behind it is the first to show it."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Recurrent(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.input = nn.Linear(3, width)
        self.recurrent = nn.Parameter(1.5 * torch.randn(width, width) / width**0.5)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        inputs = self.input(x)
        h = torch.zeros_like(inputs[0])
        for t in range(len(inputs)):
            h = inputs[t] + h @ self.recurrent  # <- op
        return self.head(h)  # <- stop


model = Recurrent().eval()
with torch.no_grad():
    for step, length in enumerate([5, 20, 40, 400]):
        print(step, model(torch.randn(length, 2, 3)).abs().max().item())
