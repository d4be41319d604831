# expect: stop event=nonfinite.forward module=norm type=Standardize step=3 op=std
# expect: stop event=nonfinite.forward module=norm type=Standardize step=7 op=std
"""N4: the unbiased standard deviation of one element is 0/0; the last batch of an epoch has one.

Two epochs, finite steps in between: two stops.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


class Standardize(nn.Module):
    def forward(self, x):
        return (x - x.mean(0)) / (x.std(0) + 1e-5)  # <- op


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 8)
        self.norm = Standardize()
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        h = torch.relu(self.body(x))
        h = self.norm(h)  # <- stop
        return self.head(h)


loader = DataLoader(TensorDataset(torch.randn(25, 5), torch.randn(25, 1)), batch_size=8)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        if not loss.isfinite():
            print("skipped a batch of", len(x))
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
