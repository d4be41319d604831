# expect: stop event=nonfinite.backward module=5 type=Root step=2 op=div
"""A network with activations in place: the layer before such an activation is not to blame."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Root(nn.Module):
    def forward(self, x):
        return (x - x.detach().min()).sqrt()  # <- op


model = nn.Sequential(
    nn.Conv2d(1, 4, 3),
    nn.BatchNorm2d(4),
    nn.ReLU(inplace=True),
    nn.Conv2d(4, 2, 3),
    nn.LeakyReLU(inplace=True),
    nn.Identity(),
    nn.Flatten(),
    nn.Linear(32, 1),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(5):
    if step == 2:
        model[5] = Root()
    loss = model(torch.randn(4, 1, 8, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
