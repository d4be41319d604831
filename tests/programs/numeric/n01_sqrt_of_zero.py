# expect: stop event=nonfinite.backward module= type=Siamese step=2 op=div
"""N1: a hand-written distance has the gradient inf * 0 = NaN where both points are the same.

The loss stays finite. The NaN gradient of step 2 goes into the encoder's parameters, and all that
follows from that is no news.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, left, right):
        left = self.encoder(left)
        right = self.encoder(right)
        return ((left - right) ** 2).sum(-1).sqrt()  # <- op


model = Siamese()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(6):
    left, right = torch.randn(8, 6), torch.randn(8, 6)
    if step == 2:
        right[5] = left[5]
    loss = (model(left, right) - 1.0).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
