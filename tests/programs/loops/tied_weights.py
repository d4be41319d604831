# expect: stop event=nonfinite.backward module=scale type=Scale step=2 op=div
"""An embedding shared with the output layer: one parameter, two uses, one gradient."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class Scale(nn.Module):
    def forward(self, x):
        return x * x.abs().mean(-1, keepdim=True).sqrt()  # <- op


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.scale, self.head = (
            nn.Embedding(20, 8),
            Scale(),
            nn.Linear(8, 20, bias=False),
        )
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.scale(self.embed(ids)))


model = Tied()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    ids = torch.randint(1, 20, (4, 6))
    if step == 2:
        with torch.no_grad():
            model.embed.weight[0] = 0.0  # the padding token's
        ids[1, 2:] = 0
    loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
