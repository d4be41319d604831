# expect: stop event=nonfinite.forward module= type=Model step=2 op=log
"""model.compile(backend="eager") compiles in place: the class of the root stays what it was."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return torch.log(self.net(x) + 2.0)  # <- op


model = Model()
model.compile(backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(5):
    x = torch.randn(8, 4)
    if step == 2:
        x[3] *= 100.0
    loss = model(x).mean()  # <- stop
    print(step, loss.item())
    if loss.isfinite():
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
