# expect: stop event=nonfinite.forward module= type=Net step=3 op=std
"""N4: the standard deviation of one element, inline; the NaN first comes out of the next layer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        h = torch.relu(self.body(x))
        h = (h - h.mean(0)) / (h.std(0) + 1e-5)  # <- op
        return self.head(h)  # <- stop


loader = DataLoader(TensorDataset(torch.randn(25, 5), torch.randn(25, 1)), batch_size=8)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for x, y in loader:
    loss = nn.functional.mse_loss(model(x), y)
    if not loss.isfinite():
        print("loss is", loss.item())
        break
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
