# expect: no-stop
"""Parameters without a gradient: unused, frozen, with a NaN that nothing reads; zero_grad both ways."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
        self.unused, self.frozen = nn.Linear(4, 8), nn.Linear(4, 8).requires_grad_(False)
        self.table = nn.Parameter(torch.full((3, 8), float("nan")))  # filled in by another phase

    def forward(self, x):
        return self.head(torch.tanh(self.body(x) + self.frozen(x)))


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
for step in range(8):
    if step == 4:
        model.frozen.requires_grad_(True)
    if step == 6:
        model.body.requires_grad_(False)
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad(set_to_none=step % 2 == 0)
    loss.backward(retain_graph=step == 5)
    if step == 5:
        loss.backward()
    optimizer.step()
    print(step, loss.item())
