# expect: stop event=nonfinite.forward module= type=Model step=2 op=nll_loss_forward
"""The model returns a plain dataclass of the user's, with the NaN loss in one of its fields."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


@dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x, labels):
        logits = self.head(x)
        return Output(logits, F.cross_entropy(logits, labels, ignore_index=-1))  # <- op


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x, labels = torch.randn(6, 4), torch.randint(0, 3, (6,))
    if step == 2:
        labels[:] = -1
    out = model(x, labels)  # <- stop
    print(step, out.loss.item())
    optimizer.zero_grad()
    out.loss.backward()
    optimizer.step()
