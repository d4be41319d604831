"""Generative models, control, tables, graphs, audio."""

import torch
import torch.nn as nn
import torch.nn.functional as F

nz, ngf = 100, 16
torch.manual_seed(0)


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 400)
        self.fc21 = nn.Linear(400, 20)
        self.fc22 = nn.Linear(400, 20)
        self.fc3 = nn.Linear(20, 784)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 784))
        return torch.sigmoid(self.fc3(self.reparameterize(mu, logvar))), mu, logvar


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 4, 1, 0), nn.Sigmoid()
        )

    def forward(self, input):
        return self.main(input).view(-1, 1).squeeze(1)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 128)
        self.action_head = nn.Linear(128, 2)
        self.value_head = nn.Linear(128, 1)
        self.saved = []

    def forward(self, x):
        x = F.relu(self.affine1(x))
        action_prob = F.softmax(self.action_head(x), dim=-1)
        return action_prob, self.value_head(x)


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, x):
        return self.linear(x)


class GraphConv(nn.Module):
    # tensorpoint: x: f32[V, 16], adjacency: f32[V, V]
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 8))

    def forward(self, x, adjacency):
        degree = adjacency.sum(1, keepdim=True).clamp(min=1)
        return F.relu(adjacency @ (x @ self.weight) / degree)


class Contrastive(nn.Module):
    # tensorpoint: a: f32[B, 32], b: f32[B, 32], t: f32[]
    def forward(self, a, b, t):
        distances = (a[:, None] - b[None]).pow(2).sum(-1)
        labels = torch.arange(len(a))
        same = labels[:, None] == labels[None]
        return F.cross_entropy(-distances / t, labels), same


class Experts(nn.Module):
    def __init__(self, dim=16, experts=4):
        super().__init__()
        self.gate = nn.Linear(dim, experts)
        self.experts = nn.ModuleList([nn.Linear(dim, dim) for _ in range(experts)])

    def forward(self, x):
        scores, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == i)
            if rows.numel() == 0:
                continue
            out[rows] += expert(x[rows]) * scores[rows, place, None]
        return out


class AudioNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, 32, 80, 16), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(4)
        )
        self.fc = nn.Linear(32, 35)

    def forward(self, x):
        x = self.conv(x)
        x = F.avg_pool1d(x, x.shape[-1]).permute(0, 2, 1)
        return F.log_softmax(self.fc(x), dim=2)


class TimeEmbedded(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.inp = nn.Conv2d(3, dim, 3, padding=1)
        self.out = nn.Conv2d(dim, 3, 3, padding=1)

    def forward(self, x, t):
        h = self.inp(x) + self.time(t[:, None].float())[:, :, None, None]
        return self.out(F.silu(h))


class DQN(nn.Module):
    def __init__(self, h=84, w=84, outputs=4):
        super().__init__()
        self.conv = nn.Conv2d(4, 16, 8, stride=4)

        def size(s):
            return (s - 8) // 4 + 1

        self.head = nn.Linear(size(h) * size(w) * 16, outputs)

    def forward(self, x):
        x = F.relu(self.conv(x / 255))
        return self.head(x.view(x.size(0), -1))


def train():
    for step in range(10**9):
        Regression()(torch.randn(8, 1)).backward()


train()
