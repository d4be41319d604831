# expect: stop event=nonfinite.forward module=log type=Log step=2 op=log
"""The user has hooks too: on inputs, outputs and gradients, one of which replaces the output."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
seen = []


class Log(nn.Module):
    def forward(self, x):
        return torch.log(x)  # <- op


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.log, self.head = nn.Linear(4, 4), Log(), nn.Linear(4, 1)

    def forward(self, x, offset):
        h = self.linear(x)
        h = self.log(h.sigmoid() + offset)  # <- stop
        return self.head(h)


model = Model()
model.linear.register_forward_pre_hook(lambda module, args: (args[0] * 0.5,))
model.linear.register_forward_hook(lambda module, args, out: out.clamp(-3, 3))
model.head.register_full_backward_hook(lambda module, grad_in, grad_out: seen.append("backward"))
model.register_forward_hook(lambda module, args, kwargs, out: seen.append("end"), with_kwargs=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    loss = model(torch.randn(8, 4), offset=-2.0 if step == 2 else 0.0).pow(2).mean()
    print(step, loss.item())
    if loss.isfinite():
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
assert seen.count("end") == 4 and seen.count("backward") == 3
