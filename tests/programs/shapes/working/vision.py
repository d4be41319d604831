"""Small vision models: cifar, residual, depthwise, squeeze and excite, patches, upsampling."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class CifarNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        return self.fc2(F.relu(self.fc1(x)))


class BasicBlock(nn.Module):
    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Conv2d(in_planes, planes, 1, stride)

    def forward(self, x):
        return F.relu(self.conv2(F.relu(self.bn1(self.conv1(x)))) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, block, num_blocks, num_classes=10):
        super().__init__()
        self.in_planes = 16
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1)
        self.layer1 = self._make(block, 16, num_blocks[0], 1)
        self.layer2 = self._make(block, 32, num_blocks[1], 2)
        self.linear = nn.Linear(32, num_classes)

    def _make(self, block, planes, n, stride):
        layers = []
        for s in [stride] + [1] * (n - 1):
            layers.append(block(self.in_planes, planes, s))
            self.in_planes = planes
        return nn.Sequential(*layers)

    def forward(self, x):
        out = self.layer2(self.layer1(F.relu(self.conv1(x))))
        out = F.adaptive_avg_pool2d(out, 1)
        return self.linear(out.view(out.size(0), -1))


def resnet():
    return ResNet(BasicBlock, [2, 2])


class Depthwise(nn.Module):
    def __init__(self, inp=32, oup=64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inp, inp, 3, 2, 1, groups=inp),
            nn.ReLU6(),
            nn.Conv2d(inp, oup, 1),
            nn.BatchNorm2d(oup),
        )

    def forward(self, x):
        return self.body(x)


class SqueezeExcite(nn.Module):
    def __init__(self, channels=64, reduction=4):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.fc = nn.Sequential(
            nn.Linear(channels, channels // reduction),
            nn.ReLU(),
            nn.Linear(channels // reduction, channels),
        )

    def forward(self, x):
        x = self.conv(x)
        b, c, _, _ = x.size()
        y = x.mean((2, 3))
        return x * torch.sigmoid(self.fc(y)).view(b, c, 1, 1)


class SuperResolution(nn.Module):
    def __init__(self, upscale_factor):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 64, 5, 1, 2)
        self.conv2 = nn.Conv2d(64, upscale_factor**2, 3, 1, 1)
        self.shuffle = nn.PixelShuffle(upscale_factor)

    def forward(self, x):
        return self.shuffle(self.conv2(F.relu(self.conv1(x))))


class ViT(nn.Module):
    def __init__(self, image_size=64, patch_size=16, dim=48):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch_size, patch_size)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.zeros(1, (image_size // patch_size) ** 2 + 1, dim))
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(dim, 4, 96, batch_first=True), 2
        )
        self.head = nn.Linear(dim, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.head(self.encoder(x)[:, 0])


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x):
        a = F.relu(self.a(x))
        b = F.relu(self.b(F.max_pool2d(a, 2)))
        return self.out(torch.cat([a, self.up(b)], 1))


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 16)
        )

    def forward(self, one, other):
        return F.pairwise_distance(self.net(one), self.net(other))
