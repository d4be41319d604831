# expect: stop event=nonfinite.forward module= step=3 op=std
"""N4: a variance term in a loss function: the unbiased deviation of the last batch's one sample."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


def spread(z):
    return torch.relu(1 - z.std(0)).mean()  # <- op


encoder = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
for step, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(25, 5)), batch_size=8)):
    z = encoder(x)
    loss = z.pow(2).mean() + spread(z)
    print(step, loss.item())
    optimizer.zero_grad()
    loss.backward()  # <- stop
    if loss.isfinite():
        optimizer.step()
