# expect: stop event=nonfinite.forward module=uncertainty type=BernoulliEntropy step=2 op=log
"""Under bfloat16 autocast a confident probability rounds to 1: (1 - p) * log(1 - p) is 0 * -inf."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class BernoulliEntropy(nn.Module):
    def forward(self, logits):
        p = torch.sigmoid(logits)
        return -(p * torch.log(p) + (1 - p) * torch.log(1 - p))  # <- op


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
        self.uncertainty = BernoulliEntropy()

    def forward(self, x):
        logits = self.body(x)
        return logits, self.uncertainty(logits)  # <- stop


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    x, labels = torch.randn(8, 4), torch.randint(0, 2, (8, 1)).float()
    if step == 2:
        x[5] *= 120.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, uncertainty = model(x)
    loss = nn.functional.binary_cross_entropy_with_logits(logits.float(), labels)
    loss = loss + 0.1 * uncertainty.float().mean()
    print(step, loss.item())
    if loss.isfinite():
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
