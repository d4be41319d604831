# expect: stop event=nonfinite.backward module=angle type=Angle step=2 op=rsqrt
"""N9: the derivative of acos at exactly 1 is infinite; the clamp in front of it lets it through."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Angle(nn.Module):
    def forward(self, a, b):
        cosine = (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))
        return torch.acos(cosine.clamp(-1.0, 1.0))  # <- op


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 2, bias=False)
        self.angle = Angle()

    def forward(self, x, direction):
        h = self.body(x)
        return self.angle(h, direction)


model = Net()
with torch.no_grad():
    model.body.weight.copy_(torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]]))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(5):
    x, direction = torch.rand(8, 3) + 0.5, torch.randn(8, 2)
    if step == 2:
        with torch.no_grad():
            x[2] = torch.tensor([4.0, 0.0, 0.0])
            direction[2] = model.body(x)[2].round()
            model.body.weight[:, 0] = torch.tensor([1.0, 0.0])
    loss = model(x, direction).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
