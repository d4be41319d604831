# expect: stop event=nonfinite.forward module=blocks.0 type=Block step=2 op=rsqrt
"""N37: the layer norm is inline, by rsqrt of a variance to which float16 adds an eps of 0."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        scale = torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-8)  # <- op
        return x + torch.relu(self.up(centred * scale))  # <- stop


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(8) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


model = Model().half().eval()
with torch.inference_mode():
    for step in range(4):
        x = torch.randn(2, 3, 8, dtype=torch.float16)
        if step == 2:
            x[1, 0] = 0.5  # a constant row
        print(step, model(x).float().mean().item())
