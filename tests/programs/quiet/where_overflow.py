# expect: no-stop
"""Overflows and 0/0 that are masked away before any module returns: where, nan_to_num, indexing."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Softplus(nn.Module):
    def forward(self, x):
        return torch.where(x > 20, x, torch.log1p(torch.exp(x)))


class MaskedMean(nn.Module):
    def forward(self, x, keep):
        mean = (x * keep).sum(-1) / keep.sum(-1)
        return torch.nan_to_num(mean, nan=0.0)


class SafeLog(nn.Module):
    def forward(self, x):
        log = x.log()
        log[~log.isfinite()] = -30.0
        return log


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.softplus, self.mean, self.log = Softplus(), MaskedMean(), SafeLog()

    def forward(self, x, keep):
        h = self.softplus(self.body(x))
        return self.mean(h, keep) + self.log(x).amax(-1)


model = Net().eval()
with torch.no_grad():
    for step in range(4):
        x, keep = 200.0 * torch.randn(16, 4), torch.rand(16, 8) > 0.5
        keep[3] = False
        x[2] = -1.0
        out = model(x, keep)
        assert out.isfinite().all()
        print(step, out.sum().item())
