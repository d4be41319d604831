# expect: stop event=nonfinite.backward module=act type=Act step=2 op=div
"""A torch.autograd.Function of the user's own: its backward divides by the output, which may be 0."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clamp(min=0.0).sqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient / (2.0 * y)  # <- stop


class Act(nn.Module):
    def forward(self, x):
        return Root.apply(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.act, self.head = nn.Linear(4, 8), Act(), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.act(self.body(x)))


model = Net()
with torch.no_grad():
    model.body.bias.fill_(10.0)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(5):
    x = torch.randn(16, 4)
    if step == 2:
        x[3] *= 100.0
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
