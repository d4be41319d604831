# expect: stop event=nonfinite.backward module=act type=Softplus step=2 op=mul
"""N5: a hand-written softplus hides an overflow in the branch of `where` that is not taken.

The forward is finite and the loss fine; the backward of step 2 makes inf * 0 = NaN, which the
optimizer puts into the parameters of `body` (those of `head` stay finite).
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Softplus(nn.Module):
    def forward(self, x):
        return torch.where(x > 20, x, torch.log1p(torch.exp(x)))  # <- op


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.act = Softplus()
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        h = self.body(x)
        return self.head(self.act(h))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step in range(5):
    x = torch.randn(16, 4)
    if step == 2:
        x[3] *= 500.0
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
