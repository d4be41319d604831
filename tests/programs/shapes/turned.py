"""Faults that only sizes show which no probe has: each behind a condition of the file's own."""

import torch
import torch.nn as nn


class Chunked(nn.Module):
    # tensorpoint: x: f32[B, T, 32]
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(32, 8)
        self.wide = nn.Linear(64, 8)

    def forward(self, x):
        if x.shape[1] == 777:
            # fault fails when T == 777 (T = 777)
            return self.wide(x)
        if 40 < x.shape[1] < 60 and x.shape[0] > 8:
            # fault fails when T > 40 and B > 8 (B = 9, T = 41)
            x = x.view(-1, 31)
        return self.fc(x)


class Guessed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(32, 8)
        self.wide = nn.Linear(64, 8)

    def forward(self, x):
        y = self.fc(x)
        if x.shape[0] % 97 == 13:
            # fault fails when B % 97 == 13 (B = 13)
            y = self.wide(y)
        return y


class Nested(nn.Module):
    # tensorpoint: x: f32[B, T, 32], y: f32[U, 8]
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(32, 8)

    def forward(self, x, y):
        if x.shape[1] % 11 == 3:
            x = x * 2
            if y.shape[0] == 400:
                # fault fails when T % 11 == 3 and U == 400 (T = 14, U = 400)
                y = y.view(-1, 7)
        return self.fc(x), y


class Together(nn.Module):
    # tensorpoint: x: f32[B, T, 32], y: f32[U, 8]
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x, y):
        z = torch.zeros(3, 8)
        if x.shape[1] % 11 == 3:
            z = z[:, :4]
        if y.shape[0] == 400:
            # fault fails when T % 11 == 3 and U == 400 (T = 14, U = 400)
            z = self.fc(z)
        return x, y, z


class Fine(nn.Module):
    # tensorpoint: x: f32[B, T, 32], T >= 5
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(32, 8)
        self.size = 5000

    def forward(self, x):
        assert x.shape[1] < self.size
        if x.shape[1] == 4:
            x = x.view(-1, 31)
        if x.shape[1] % 2:
            x = x[:, :-1]
        if x.shape[1] == 800:
            raise ValueError("not 800")
        return self.fc(x)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.fc = nn.Linear(8 * 62 * 62, 8)

    def forward(self, x):
        if x.shape[0] > 100:
            x = x.view(-1, 3, 31, 31)
        return self.fc(self.conv(x).flatten(1))
