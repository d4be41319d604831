# expect: stop event=nonfinite.backward module= type=Net step=2 op=div
"""N7: the guarded log2 is inline; a channel that relu has cut off is exactly 0."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x, mask):
        h = torch.sigmoid(self.body(x)) * mask
        h = torch.where(h > 0, torch.log2(h), torch.zeros_like(h))  # <- op
        return self.head(h)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    x, mask = torch.randn(16, 4), torch.ones(16, 8)
    if step == 2:
        mask[4, 5] = 0.0
    loss = model(x, mask).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
