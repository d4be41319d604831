import functools

import torch
import torch.nn as nn
import torch.nn.functional as F


def kept(function):
    found = functools.lru_cache(maxsize=8)(function)
    return lambda *args: found(*args)


@kept
def sides(height, width):
    # is grid: f32[ceil(H/4), ceil(W/4)]
    grid = torch.zeros(height, width)
    return grid


class Windows(nn.Module):
    # tensorpoint: x: f32[B, 3, H, W]
    """Attention within windows of 7: padded to a multiple, cut, put together and cropped."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 32, 4, stride=4)
        self.merge = nn.Linear(4 * 32, 64)
        self.tables = {}

    def forward(self, x):
        # is x: f32[B, H//4, W//4, 32]
        x = self.embed(x).permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        # is right: -(W//4) % 7
        right = (7 - w % 7) % 7
        bottom = (7 - h % 7) % 7
        # is padded: f32[B, 7*((H + 24)//28), 7*((W + 24)//28), 32]
        padded = F.pad(x, (0, 0, 0, right, 0, bottom))
        rows, columns = padded.shape[1] // 7, padded.shape[2] // 7
        cut = padded.view(b, rows, 7, columns, 7, c).transpose(2, 3)
        # is windows: f32[B*((H + 24)//28)*((W + 24)//28), 49, 32]
        windows = cut.reshape(-1, 49, c)
        # is bias: f32[49, 49]
        bias = self.bias(49)
        # is scores: f32[B*((H + 24)//28)*((W + 24)//28), 49, 49]
        scores = windows @ windows.transpose(1, 2) + bias
        windows = scores.softmax(-1) @ windows
        back = windows.view(b, rows, columns, 7, 7, c).transpose(2, 3)
        back = back.reshape(b, 7 * rows, 7 * columns, c)
        # is cropped: f32[B, H//4, W//4, 32]
        cropped = back[:, :h, :w].contiguous()
        if h % 2 or w % 2:
            # is cropped: f32[B, 2*((H + 4)//8), 2*((W + 4)//8), 32]
            cropped = F.pad(cropped, (0, 0, 0, w % 2, 0, h % 2))
        halves = [cropped[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
        # is merged: f32[B, ((H + 4)//8)*((W + 4)//8), 64]
        merged = self.merge(torch.cat(halves, -1).flatten(1, 2))
        return merged

    def bias(self, size):
        if size not in self.tables:
            # is table: f32[49, 49]
            table = torch.zeros(size, size)
            self.tables[size] = table
        return self.tables[size]


class Tokens(nn.Module):
    # tensorpoint: x: f32[B, 3, H, W]
    """Strided convolutions, then tokens with one for the class, and pooled keys."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 7, stride=4, padding=2)
        self.down = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.keys = nn.Conv2d(32, 32, 3, stride=2, padding=1)
        self.token = nn.Parameter(torch.zeros(1, 1, 32))

    def forward(self, x):
        # is stem: f32[B, 16, (H + 1)//4, (W + 1)//4]
        stem = self.stem(x)
        # is down: f32[B, 32, (H + 5)//8, (W + 5)//8]
        down = self.down(stem)
        b, c, h, w = down.shape
        # is size: ((H + 5)//8)*((W + 5)//8)
        size = h * w
        token = self.token.expand(b, -1, -1)
        # is queries: f32[B, ((H + 5)//8)*((W + 5)//8) + 1, 32]
        queries = torch.cat([token, down.view(b, c, size).transpose(1, 2)], 1)
        # is keys: f32[B, ((H + 13)//16)*((W + 13)//16) + 1, 32]
        keys = torch.cat([token, self.keys(down).flatten(2).transpose(1, 2)], 1)
        # is scores: f32[B, ((H + 5)//8)*((W + 5)//8) + 1, ((H + 13)//16)*((W + 13)//16) + 1]
        scores = queries @ keys.transpose(1, 2)
        return scores


class Pyramid(nn.Module):
    # tensorpoint: x: f32[B, 3, H, W]
    """Levels of patches of 14, from the smallest up to the size of the one before."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 14, stride=14)
        self.down = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.side = nn.Conv2d(16, 16, 1)

    def forward(self, x):
        # is fine: f32[B, 16, H//14, W//14]
        fine = self.patch(x)
        # is coarse: f32[B, 16, (H + 14)//28, (W + 14)//28]
        coarse = self.down(fine)
        # is up: f32[B, 16, H//14, W//14]
        up = F.interpolate(coarse, size=fine.shape[2:]) + self.side(fine)
        h, w = up.shape[2] * 14, up.shape[3] * 14
        # is depth: f32[B, 16, 14*(H//14), 14*(W//14)]
        depth = F.interpolate(up, size=(h, w))
        # is low: f32[B, 16, min(H//14, 9), min(W//14, 9)]
        low = fine[:, :, :9, :9]
        # is both: f32[B, 16, ceil(H/4), ceil(W/4)]
        both = F.interpolate(low, size=(-(-x.shape[2] // 4), -(-x.shape[3] // 4)))
        grid = sides(both.shape[2], both.shape[3])
        return both + grid, depth
