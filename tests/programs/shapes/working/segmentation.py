"""Fully convolutional: logits at the size of the image; dictionaries as outputs."""

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F


class ASPPPooling(nn.Sequential):
    def __init__(self, in_channels, out_channels):
        super().__init__(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(in_channels, out_channels, 1), nn.ReLU()
        )

    def forward(self, x):
        size = x.shape[-2:]
        for mod in self:
            x = mod(x)
        return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


class DeepLab(nn.Module):
    def __init__(self, num_classes=21):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()
        )
        self.convs = nn.ModuleList(
            [
                nn.Conv2d(16, 8, 1),
                nn.Conv2d(16, 8, 3, padding=2, dilation=2),
                nn.Conv2d(16, 8, 3, padding=4, dilation=4),
                ASPPPooling(16, 8),
            ]
        )
        self.project = nn.Sequential(nn.Conv2d(4 * 8, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.classifier = nn.Conv2d(8, num_classes, 1)

    def forward(self, x):
        input_shape = x.shape[-2:]
        features = self.backbone(x)
        res = [conv(features) for conv in self.convs]
        res = torch.cat(res, dim=1)
        x = self.classifier(self.project(res))
        x = F.interpolate(x, size=input_shape, mode="bilinear", align_corners=False)
        result = OrderedDict()
        result["out"] = x
        result["features"] = features
        return result
