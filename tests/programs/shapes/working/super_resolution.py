"""Sub-pixel convolutions, and the residual kind."""

import torch
import torch.nn as nn
import torch.nn.init as init


class ESPCN(nn.Module):
    def __init__(self, upscale_factor):
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 64, (5, 5), (1, 1), (2, 2))
        self.conv2 = nn.Conv2d(64, 32, (3, 3), (1, 1), (1, 1))
        self.conv3 = nn.Conv2d(32, upscale_factor**2, (3, 3), (1, 1), (1, 1))
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        self._initialize_weights()

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        x = self.pixel_shuffle(self.conv3(x))
        return x

    def _initialize_weights(self):
        init.orthogonal_(self.conv1.weight, init.calculate_gain("relu"))
        init.orthogonal_(self.conv3.weight)


class EDSR(nn.Module):
    def __init__(self, scale=3, feats=16):
        super().__init__()
        self.head = nn.Conv2d(3, feats, 3, padding=1)
        self.body = nn.ModuleList([nn.Conv2d(feats, feats, 3, padding=1) for _ in range(4)])
        self.tail = nn.Sequential(
            nn.Conv2d(feats, feats * scale**2, 3, padding=1),
            nn.PixelShuffle(scale),
            nn.Conv2d(feats, 3, 3, padding=1),
        )
        self.register_buffer("mean", torch.tensor([0.45, 0.44, 0.40]).view(1, 3, 1, 1))

    def forward(self, lr):
        x = self.head(lr - self.mean)
        skip = x
        for conv in self.body:
            x = x + conv(torch.relu(x)) * 0.1
        sr = self.tail(x + skip) + self.mean
        return sr


model = ESPCN(upscale_factor=3)
