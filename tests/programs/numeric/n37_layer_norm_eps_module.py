# expect: stop event=nonfinite.forward module=norm type=LayerNorm step=2 op=div
"""N37: a hand-written layer norm in float16, whose eps = 1e-8 is 0 there: 0/0 in a constant row."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class LayerNorm(nn.Module):
    def __init__(self, width, eps=1e-8):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.pow(2).mean(-1, keepdim=True)
        return centred / torch.sqrt(variance + self.eps) * self.weight + self.bias  # <- op


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8, padding_idx=0)
        self.norm = LayerNorm(8)
        self.head = nn.Linear(8, 4)

    def forward(self, ids):
        return self.head(self.norm(self.embed(ids)))  # <- stop


model = Encoder().half().eval()
with torch.no_grad():
    for step, ids in enumerate(torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 0], [9, 10, 11]])):
        print(step, model(ids).float().mean().item())  # the padding of step 2 is all zero
