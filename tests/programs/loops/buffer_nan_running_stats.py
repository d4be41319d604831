# expect: stop event=nonfinite.input module=norm type=BatchNorm1d step=4
"""BatchNorm statistics averaged over zero checkpoints are 0/0; evaluation meets the NaN buffer."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        h = self.body(x)
        h = self.norm(h)  # <- stop
        return self.head(h)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())

total, count = torch.zeros(8), 0  # a user's own weight averaging that found no checkpoint
model.norm.running_mean.copy_(total / count)
model.eval()
with torch.no_grad():
    for step in range(2):
        print("evaluation", model(torch.randn(8, 4)).mean().item())
