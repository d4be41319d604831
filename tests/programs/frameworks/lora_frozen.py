# expect: stop event=nonfinite.backward module=blocks.7 type=RMSNorm step=2 op=div
"""LoRA: everything but small adapters in the first block is frozen, and the NaN is made far above.

No parameter between the fault and the adapter gets a gradient that could show it.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Lora(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(8, 8)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class RMSNorm(nn.Module):
    def forward(self, x):
        return x / (x.pow(2).mean(-1, keepdim=True).sqrt() + 1e-6)  # <- op


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [m for _ in range(10) for m in (nn.Linear(8, 8, bias=False), nn.ReLU())]
        self.lora, self.blocks = Lora(), nn.Sequential(*layers[:7], RMSNorm(), *layers[7:])

    def forward(self, x):
        return self.blocks(self.lora(x))


model = Model()
model.blocks.requires_grad_(False)
model.lora.base.requires_grad_(False)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for step in range(5):
    if step == 2:
        model.blocks[6].weight.zero_()  # the user prunes a frozen layer
    loss = model(torch.randn(4, 8)).sum()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())
