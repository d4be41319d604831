# expect: stop event=nonfinite.backward module= type=Net step=2 op=div
"""N23: a loss function outside any module decomposes what the model returned."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


def orthogonal(h):
    u, s, v = torch.linalg.svd(h, full_matrices=False)  # <- op
    return u @ v


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 3, bias=False)

    def forward(self, x):
        h = self.body(x)
        return h


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    x, target = torch.randn(3, 3), torch.randn(3, 3)
    if step == 2:
        with torch.no_grad():  # the user starts again from the identity
            model.body.weight.copy_(torch.eye(3))
        x = torch.eye(3)
    loss = (orthogonal(model(x)) - target).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    if model.body.weight.grad.isfinite().all():
        optimizer.step()
    print(step, loss.item())
