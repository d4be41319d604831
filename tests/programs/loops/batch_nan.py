# expect: stop event=nonfinite.input module= type=Net step=3 argument=features sample=5
# expect: stop event=nonfinite.input module= type=Net step=6 argument=weights sample=2
"""NaN, later inf, comes in with the batch: in the first argument, then in another one."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, features, weights=None):
        return self.body(features) * weights[:, None]


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    features, weights = torch.randn(8, 4), torch.rand(8)
    if step == 3:
        features[5, 1] = torch.nan
    if step == 6:
        weights[2] = torch.inf
    loss = model(features, weights=weights).pow(2).mean()  # <- stop
    print(step, loss.item())
    if loss.isfinite():
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
