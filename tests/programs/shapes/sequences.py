from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab_size: int = 100
    hidden_size: int = 48
    heads: int = 4
    layers: int = 3
    window: int = 16


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)

    def forward(self, x, mask):
        # is T: T
        B, T, C = x.size()
        # is q: f32[B, T, 48]
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        # is q: f32[B, 4, T, 12]
        q = q.view(B, T, self.config.heads, -1).transpose(1, 2)
        k = k.view(B, T, self.config.heads, -1).transpose(1, 2)
        # is scores: f32[B, 4, T, T]
        scores = q @ k.transpose(-2, -1)
        if (mask == 1).all():
            # is bias: f32[T, T]
            bias = torch.zeros(T, T)
        else:
            # is bias: f32[B, 1, 1, T]
            bias = mask[:, None, None].float()
        scores = (scores + bias).softmax(-1)
        return x + scores.mean(1) @ x


class Model(nn.Module):
    # tensorpoint: ids: i64[B, T], mask: i64[B, T], state: (f32[1, B, 8], f32[1, B, 8])
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rnn = nn.LSTM(config.hidden_size, 8, 1, batch_first=True)
        self.blocks = nn.ModuleList([Attention(config) for _ in range(config.layers)])

    # is state: (f32[1, B, 8], f32[1, B, 8])
    def forward(self, ids, mask=None, state=None):
        # is x: f32[B, T, 48]
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, mask)
        # is h: f32[1, B, 8]
        out, (h, c) = self.rnn(x, state)
        # is recent: f32[B, min(T, 16), 8]
        recent = out[:, -self.config.window :]
        steps = []
        for t in range(ids.shape[1]):
            # is step: f32[B, 8]
            step = out[:, t]
            steps.append(step)
        # is back: f32[B, T, 8]
        back = torch.stack(steps, 1)
        # is padded: f32[B, 8*ceil(T/8), 48]
        padded = F.pad(x, (0, 0, 0, -ids.shape[1] % 8))
        # is pairs: f32[B, ceil(T/8), 8, 48]
        pairs = padded.reshape(ids.shape[0], -1, 8, 48)
        # is chosen: f32[N, 48]
        chosen = x[mask.bool()]
        # is both: f32[N + N2, 48]
        both = torch.cat([chosen, x[mask == 0]])
        return recent, {"back": back}


model = Model(Config())
