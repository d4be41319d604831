# expect: no-stop
"""A float mask of 0 and -inf is an argument of the root, by position or keyword, and of layers."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, bias):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(-1, -2) * x.shape[-1] ** -0.5 + bias
        return self.out(scores.softmax(-1) @ v)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention(16) for _ in range(2))
        self.head = nn.Linear(16, 1)

    def forward(self, x, attention_bias):
        for layer in self.layers:
            x = x + layer(x, attention_bias)
        return self.head(x)


model = Model()
optimizer = torch.optim.Adam(model.parameters())
for step in range(6):
    x = torch.randn(3, 6, 16)
    keep = torch.arange(6)[None, :] < torch.tensor([6, 4, 2])[:, None]
    bias = torch.zeros(3, 1, 6).masked_fill(~keep[:, None], float("-inf"))
    out = model(x, bias) if step % 2 else model(x, attention_bias=bias.expand(3, 6, 6))
    loss = out.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
