# expect: no-stop
"""Modules whose whole purpose is to make a -inf mask: causal, padding, and their sum."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class CausalMask(nn.Module):
    def forward(self, length):
        return torch.triu(torch.full((length, length), float("-inf")), diagonal=1)


class PaddingMask(nn.Module):
    def forward(self, ids):
        mask = torch.zeros(ids.shape)
        mask[ids == 0] = float("-inf")
        return mask[:, None, :]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.causal, self.padding = CausalMask(), PaddingMask()
        self.embed = nn.Embedding(30, 16)
        self.qkv = nn.Linear(16, 48)
        self.head = nn.Linear(16, 30)

    def forward(self, ids):
        q, k, v = self.qkv(self.embed(ids)).chunk(3, dim=-1)
        mask = self.causal(ids.shape[1]) + self.padding(ids)
        weights = (q @ k.transpose(-1, -2) * 0.25 + mask).softmax(-1)
        return self.head(weights @ v)


model = Model()
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    ids = torch.randint(1, 30, (4, 8))
    ids[1, 5:] = 0
    logits = model(ids[:, :-1])
    loss = nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
