# expect: stop event=nonfinite.forward module=attend type=Attend step=2 op=div
"""A layer returns (output, (weights, None)) as attention layers do; only the inner part is NaN."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Attend(nn.Module):
    def forward(self, x, temperature):
        scores = x @ x.transpose(-1, -2)
        entropy = scores / temperature - scores / temperature  # <- op
        return scores.softmax(-1) @ x, (entropy, None)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attend = nn.Linear(4, 8), Attend()

    def forward(self, x, temperature):
        x = self.embed(x)
        x, _ = self.attend(x, temperature)  # <- stop
        return x, None


model = Model().eval()
with torch.no_grad():
    for step, temperature in enumerate([1.0, 0.5, 0.0, 1.0]):
        out, _ = model(torch.randn(2, 3, 4), temperature)
        print(step, out.mean().item())
