# expect: stop event=nonfinite.backward module=root type=Sqrt step=5 op=div
#         file=accelerator.py code="loss.backward("
# needs: accelerate
"""accelerate: a prepared model, gradients accumulated over two batches, clipped through it."""

import torch
from accelerate import Accelerator
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Sqrt(nn.Module):
    def forward(self, x):
        return torch.sqrt(x)  # <- op


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.root, self.head = nn.Linear(4, 8), Sqrt(), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.root(torch.sigmoid(self.body(x))))


accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer = accelerator.prepare(model, optimizer)
for step in range(8):
    x = torch.randn(8, 4)
    if step == 5:
        x[2] = -1e6 * model.body.weight[3].detach()
    with accelerator.accumulate(model):
        loss = model(x).pow(2).mean()
        accelerator.backward(loss)  # <- user line
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(step, loss.item())
