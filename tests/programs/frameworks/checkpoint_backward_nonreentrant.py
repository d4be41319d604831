# expect: stop event=nonfinite.backward module=blocks.1.root type=Sqrt step=2 op=div
"""torch.utils.checkpoint with use_reentrant=False: the NaN is made in a block's second run's backward."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
torch.set_num_threads(1)


class Sqrt(nn.Module):
    def forward(self, x):
        return torch.sqrt(x)  # <- op


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.root = nn.Linear(4, 4), Sqrt()

    def forward(self, x):
        return x + self.root(torch.sigmoid(self.body(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.blocks = nn.Linear(4, 4), nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    if step == 2:
        with torch.no_grad():
            model.blocks[1].body.bias[2] = -500.0
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
