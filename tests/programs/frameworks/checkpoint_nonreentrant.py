# expect: stop event=nonfinite.forward module=blocks.1.act type=Log1p step=2 op=log
# expect: stop event=nonfinite.forward module=blocks.0 type=Block step=4 op=pow
"""torch.utils.checkpoint with use_reentrant=False: NaN of a layer in a block, then of the block.

The backward calls the blocks once more: those calls are no steps and no second stops.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
torch.set_num_threads(1)


class Log1p(nn.Module):
    def forward(self, x):
        return torch.log(1.0 + x)  # <- op 1


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.act = Log1p()
        self.gain, self.power = 0.1, 1.0

    def forward(self, x):
        h = torch.tanh(self.linear(x)) * self.gain
        h = self.act(h)  # <- stop 1
        return x + (h + 2.0).pow(self.power) * 0.1  # <- op 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)  # <- stop 2
        return x


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    model.blocks[1].gain = 5.0 if step == 2 else 0.1
    model.blocks[0].power = 400.0 if step == 4 else 1.0
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    if loss.isfinite():
        optimizer.step()
