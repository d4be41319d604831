# expect: stop event=nonfinite.backward module=encode type=Linear step=2 op=pow
"""Forces are gradients of an energy: a power in the forward whose second derivative is infinite at 0.

Forward, forces and loss are finite. The operation is part of the backward of the backward of `**`.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x, cutoff):
        h = self.encode(x).abs() + 0.1
        h = h * (h > cutoff)
        h = h**1.5  # <- op
        return self.decode(h)


model = Energy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    x = torch.randn(5, 3, requires_grad=True)
    energy = model(x, cutoff=0.5 if step == 2 else 0.0)
    (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
    loss = force.square().mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
