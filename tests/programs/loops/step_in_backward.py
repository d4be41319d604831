# expect: stop event=nonfinite.update module=3 type=Linear step=2
"""Each parameter has an optimizer that steps as soon as its gradient is there, inside backward().

The NaN gradient is gone before the pass ends; what it wrote is seen at the first of the steps.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Sqrt(nn.Module):
    def forward(self, x):
        return torch.sqrt(x)


model = nn.Sequential(
    nn.Linear(4, 8),
    nn.Tanh(),
    nn.Linear(8, 8),
    nn.Linear(8, 8),
    nn.Sigmoid(),
    Sqrt(),
    nn.Linear(8, 1),
)
optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}


def step_now(parameter):
    optimizers[parameter].step()  # <- stop
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step_now)
for step in range(5):
    if step == 2:
        with torch.no_grad():
            model[3].bias[1] = -1e6
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    print(step, loss.item())
