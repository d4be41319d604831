"""A detector's head: a grid of anchors out of one convolution."""

import torch
import torch.nn as nn


class Detect(nn.Module):
    def __init__(self, nc=4, anchors=((10, 13), (16, 30), (33, 23)), stride=8):
        super().__init__()
        self.nc, self.no, self.na, self.stride = nc, nc + 5, len(anchors), stride
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.SiLU(), nn.Conv2d(8, 16, 3, 4, 1), nn.SiLU()
        )
        self.register_buffer("anchors", torch.tensor(anchors).float())
        self.m = nn.Conv2d(16, self.no * self.na, 1)

    def _make_grid(self, nx, ny):
        yv, xv = torch.meshgrid([torch.arange(ny), torch.arange(nx)], indexing="ij")
        return torch.stack((xv, yv), 2).expand((1, self.na, ny, nx, 2)).float()

    def forward(self, x):
        x = self.m(self.backbone(x))
        bs, _, ny, nx = x.shape
        x = x.view(bs, self.na, self.no, ny, nx).permute(0, 1, 3, 4, 2).contiguous()
        grid = self._make_grid(nx, ny).to(x.device)
        y = x.sigmoid()
        xy = (y[..., 0:2] * 2.0 - 0.5 + grid) * self.stride
        wh = (y[..., 2:4] * 2) ** 2 * self.anchors.view(1, self.na, 1, 1, 2)
        y = torch.cat((xy, wh, y[..., 4:]), -1)
        return y.view(bs, -1, self.no)


detector = Detect(nc=20)
boxes = detector(torch.zeros(1, 3, 640, 640))
