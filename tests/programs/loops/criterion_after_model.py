# expect: stop event=nonfinite.forward module=norm type=Normalize step=2 op=div
"""The NaN logits go on into nn.CrossEntropyLoss, a root of its own: it is no news there."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Normalize(nn.Module):
    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True)  # <- op


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = Normalize(), nn.Linear(6, 3)

    def forward(self, x):
        h = self.norm(x)  # <- stop
        return self.head(h)


model = Model()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x, labels = torch.randn(8, 6), torch.randint(0, 3, (8,))
    if step == 2:
        x[5] = 0.0
    loss = criterion(model(x), labels)
    print(step, loss.item())
    if loss.isfinite():
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
