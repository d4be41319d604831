# expect: no-stop
"""N12: scaled_dot_product_attention gives 0 for a fully masked row; bool masks and -inf masks."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, dim=-1)
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).squeeze(1))


model = Attention()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(6):
    keep = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    keep[1, :, 2] = False
    additive = torch.zeros(keep.shape).masked_fill(~keep, float("-inf"))
    loss = model(torch.randn(2, 5, 16), keep if step % 2 else additive).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
assert all(p.isfinite().all() for p in model.parameters())
