# expect: stop event=nonfinite.update module=norm type=BatchNorm1d step=2 op=native_batch_norm
"""One batch of 1e20 overflows the variance of a batch norm: training hides it, evaluation won't.

The normalized values are x / sqrt(inf) = 0 and finite; running_var is inf for good.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.norm(x))  # <- op


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    x = torch.randn(16, 4)
    if step == 2:
        x[:, 1] *= 1e20
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <- stop
    print(step, loss.item(), model.norm.running_var[1].item())
