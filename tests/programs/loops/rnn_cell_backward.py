# expect: stop event=nonfinite.backward module= type=Cell step=14 op=div
"""A recurrent cell is the root, called once a time step; the loss looks at the last state only."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 5), nn.Linear(5, 5)

    def forward(self, x, h):
        return torch.tanh(self.inner(x) + self.outer(h))


cell = Cell()
optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)
for step in range(5):
    h = torch.zeros(2, 5)
    for time in range(5):
        h = cell(torch.randn(2, 3), h)
    target = h.detach().clone() if step == 2 else torch.zeros(2, 5)
    loss = ((h - target) ** 2).sum().sqrt()  # <- op
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
