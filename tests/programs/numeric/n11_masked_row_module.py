# expect: stop event=nonfinite.forward module=attn.softmax type=Softmax step=2 op=_softmax
"""N11: hand-written attention, nn.Softmax of a row that the mask fills with -inf.

The -inf is deliberate and is an argument of the softmax; the NaN is born in the softmax.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.softmax = nn.Softmax(dim=-1)
        self.out = nn.Linear(width, width)

    def forward(self, x, keep):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(-1, -2) * x.shape[-1] ** -0.5
        scores = scores.masked_fill(~keep[:, None, :], float("-inf"))
        weights = self.softmax(scores)  # <- stop
        return self.out(weights @ v)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16, padding_idx=0)
        self.attn = Attention(16)
        self.head = nn.Linear(16, 2)

    def forward(self, ids):
        return self.head(self.attn(self.embed(ids), ids != 0).mean(1))


model = Model()
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    ids = torch.randint(1, 50, (4, 7))
    ids[1, 4:] = 0
    if step == 2:
        ids[3] = 0  # an empty text: nothing but padding
    loss = nn.functional.cross_entropy(model(ids), torch.tensor([0, 1, 0, 1]))
    print(step, loss.item())
    if loss.isfinite():
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
