import torch
import torch.nn as nn
import torch.nn.functional as F


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 20)
        self.second = nn.Linear(20, 5)

    def forward(self, x):
        # cut detach() cuts the gradient here: the output gives none to first.weight, first.bias
        h = F.relu(self.first(x)).detach()
        return self.second(h)


class NoGrad(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 20)
        self.second = nn.Linear(20, 5)

    def forward(self, x):
        with torch.no_grad():
            # cut no_grad cuts the gradient here: the output gives none to first.weight, first.bias
            h = self.first(x)
        return self.second(h)


class Cast(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 20)
        self.embed = nn.Embedding(100, 5)

    def forward(self, x):
        # cut the cast to int64 cuts the gradient here
        ids = self.first(x).abs().long()
        return self.embed(ids)


class Data(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 20)
        self.second = nn.Linear(20, 5)

    def forward(self, x):
        # cut .data cuts the gradient here: the output gives none to first.weight
        return self.second(F.linear(x, self.first.weight.data, self.first.bias))


class Fine(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 20)
        self.second = nn.Linear(20, 5)
        self.unused = nn.Linear(20, 5)
        self.frozen = nn.Linear(10, 5).requires_grad_(False)
        self.register_buffer("mean", torch.zeros(20))

    def forward(self, x):
        h = self.first(x)
        with torch.no_grad():
            target = self.frozen(x)
            self.mean.lerp_(h.detach().mean(0), 0.1)
        kept = h > 0
        h = h + (h.round() - h).detach()
        y = self.second(h * kept)
        return y, (y.argmax(-1) == 1).float().mean(), h.norm().item(), target


class Inference(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 20)

    @torch.no_grad()
    def forward(self, x):
        return self.first(x).softmax(-1)
