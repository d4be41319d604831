# expect: no-stop
"""-inf as the neutral element of a maximum: F.pad, new_full, scatter, index assignment, clone."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class MaskPadding(nn.Module):
    def forward(self, x, lengths):
        x = x.clone()
        for row, length in enumerate(lengths):
            x[row, length:] = -float("inf")
        return x


class SlidingMaximum(nn.Module):
    def forward(self, x):
        padded = F.pad(x, (0, 0, 1, 1), value=float("-inf"))
        return torch.stack([padded[:, :-2], padded[:, 1:-1], padded[:, 2:]]).amax(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 8)
        self.mask, self.slide = MaskPadding(), SlidingMaximum()
        self.head = nn.Linear(16, 1)

    def forward(self, x, lengths):
        h = self.body(x)
        pooled = self.mask(h, lengths).amax(1)
        slots = h.new_full((len(h), 8), -torch.inf).scatter(1, h[:, 0].argsort(-1), h[:, 0])
        return self.head(torch.cat([pooled, self.slide(h).mean(1) + slots], dim=-1))


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(5):
    loss = model(torch.randn(4, 6, 3), [6, 3, 1, 5]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
assert all(p.isfinite().all() for p in model.parameters())
