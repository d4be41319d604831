# expect: stop event=nonfinite.backward module=2 type=Sqrt step=2 op=div
"""A meta-learner's inner step takes gradients by torch.autograd.grad and applies them by hand."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Sqrt(nn.Module):
    def forward(self, x):
        return torch.sqrt(x)  # <- op


model = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), Sqrt(), nn.Linear(8, 1))
parameters = list(model.parameters())
for step in range(5):
    x = torch.randn(8, 4)
    if step == 2:
        x[2] = -1e6 * model[0].weight[3].detach()
    loss = model(x).pow(2).mean()
    gradients = torch.autograd.grad(loss, parameters)  # <- stop
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter -= 0.01 * gradient.nan_to_num()
    print(step, loss.item())
