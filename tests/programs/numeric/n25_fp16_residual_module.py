# expect: stop event=nonfinite.forward module=blocks.1.add type=Add step=2 op=add
"""N25: a residual sum exceeds 65504 in float16; the layer norm behind it only spreads NaN."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Add(nn.Module):
    def forward(self, x, y):
        return x + y  # <- op


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        self.add = Add()
        self.up.weight.data = torch.eye(width)
        self.down.weight.data = 0.6 * torch.eye(width)

    def forward(self, x):
        h = self.down(torch.relu(self.up(x)))
        return self.add(x, h)  # <- stop


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(3))
        self.norm = nn.LayerNorm(8)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


model = Model()
with torch.no_grad():
    model.embed.weight[13, 2] = 30000.0  # an outlier feature: 30000, 48000, then 76800
model = model.half().eval()
with torch.no_grad():
    for step, ids in enumerate(torch.tensor([[1, 2, 3], [4, 5, 6], [7, 13, 8], [9, 10, 11]])):
        print(step, model(ids).float().mean().item())
