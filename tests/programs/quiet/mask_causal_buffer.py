# expect: no-stop
"""A registered buffer full of -inf is the causal mask of a hand-written attention."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class CausalAttention(nn.Module):
    def __init__(self, width, length):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.softmax = nn.Softmax(dim=-1)
        self.out = nn.Linear(width, width)
        self.register_buffer("causal", torch.full((length, length), float("-inf")).triu(1))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(-1, -2) * x.shape[-1] ** -0.5
        weights = self.softmax(scores + self.causal[: x.shape[1], : x.shape[1]])
        return self.out(weights @ v)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.layers = nn.Sequential(CausalAttention(16, 12), CausalAttention(16, 12))
        self.head = nn.Linear(16, 40)

    def forward(self, ids):
        return self.head(self.layers(self.embed(ids)))


model = Model()
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    ids = torch.randint(0, 40, (4, 9 + step % 3))
    logits = model(ids[:, :-1])
    loss = nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
