# expect: no-stop
"""NaN and inf in the backward that don't survive: masked by formulas, relu, and the user's hook."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.other, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        h = self.body(x).relu()  # exact zeros
        root = torch.where(h > 0, h, 1.0).sqrt()  # the double where
        direct = torch.sqrt(self.body(x).relu())  # inf, which relu's backward makes 0
        norm = h.norm(dim=-1, keepdim=True) + h.std(0, keepdim=True) + (h * 0).norm(p=0.5)
        cleaned = self.other(x)
        if cleaned.requires_grad:
            cleaned.register_hook(lambda gradient: gradient.nan_to_num(0.0, 0.0, 0.0))
        spoilt = torch.where(cleaned > 50, cleaned, torch.log1p(torch.exp(cleaned)))
        return self.head(root + direct + norm + spoilt)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
for step in range(6):
    x = torch.randn(16, 4)
    if step == 3:
        x[2] *= 1000.0
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    optimizer.step()
    print(step, loss.item())
