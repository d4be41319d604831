"""Denoising diffusion: a small U-Net with a time embedding, and the loss in a module."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SinusoidalPositionEmbeddings(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, time):
        device = time.device
        half_dim = self.dim // 2
        embeddings = math.log(10000) / (half_dim - 1)
        embeddings = torch.exp(torch.arange(half_dim, device=device) * -embeddings)
        embeddings = time[:, None] * embeddings[None, :]
        embeddings = torch.cat((embeddings.sin(), embeddings.cos()), dim=-1)
        return embeddings


class Block(nn.Module):
    def __init__(self, in_ch, out_ch, time_emb_dim, up=False):
        super().__init__()
        self.time_mlp = nn.Linear(time_emb_dim, out_ch)
        if up:
            self.conv1 = nn.Conv2d(2 * in_ch, out_ch, 3, padding=1)
            self.transform = nn.ConvTranspose2d(out_ch, out_ch, 4, 2, 1)
        else:
            self.conv1 = nn.Conv2d(in_ch, out_ch, 3, padding=1)
            self.transform = nn.Conv2d(out_ch, out_ch, 4, 2, 1)
        self.bnorm1 = nn.BatchNorm2d(out_ch)

    def forward(self, x, t):
        h = self.bnorm1(F.relu(self.conv1(x)))
        time_emb = F.relu(self.time_mlp(t))
        time_emb = time_emb[(...,) + (None,) * 2]
        h = h + time_emb
        return self.transform(h)


class SimpleUnet(nn.Module):
    def __init__(self):
        super().__init__()
        down_channels = (8, 16, 32)
        up_channels = (32, 16, 8)
        time_emb_dim = 32
        self.time_mlp = nn.Sequential(
            SinusoidalPositionEmbeddings(time_emb_dim),
            nn.Linear(time_emb_dim, time_emb_dim),
            nn.ReLU(),
        )
        self.conv0 = nn.Conv2d(3, down_channels[0], 3, padding=1)
        self.downs = nn.ModuleList(
            [Block(down_channels[i], down_channels[i + 1], time_emb_dim) for i in range(2)]
        )
        self.ups = nn.ModuleList(
            [Block(up_channels[i], up_channels[i + 1], time_emb_dim, up=True) for i in range(2)]
        )
        self.output = nn.Conv2d(up_channels[-1], 3, 1)

    def forward(self, x, timestep):
        t = self.time_mlp(timestep)
        x = self.conv0(x)
        residual_inputs = []
        for down in self.downs:
            x = down(x, t)
            residual_inputs.append(x)
        for up in self.ups:
            residual_x = residual_inputs.pop()
            x = torch.cat((x, residual_x), dim=1)
            x = up(x, t)
        return self.output(x)


class DDPM(nn.Module):
    def __init__(self, eps_model, betas=(1e-4, 0.02), n_T=300):
        super().__init__()
        self.eps_model, self.n_T = eps_model, n_T
        beta = torch.linspace(betas[0], betas[1], n_T)
        alphabar = torch.cumprod(1.0 - beta, dim=0)
        self.register_buffer("sqrtab", alphabar.sqrt())
        self.register_buffer("sqrtmab", (1 - alphabar).sqrt())

    def forward(self, x):
        _ts = torch.randint(0, self.n_T, (x.shape[0],)).to(x.device)
        eps = torch.randn_like(x)
        x_t = self.sqrtab[_ts, None, None, None] * x + self.sqrtmab[_ts, None, None, None] * eps
        return F.mse_loss(eps, self.eps_model(x_t, _ts.float()))

    def sample(self, n_sample, size, device):
        x_i = torch.randn(n_sample, *size).to(device)
        for i in range(self.n_T, 0, -1):
            x_i = x_i - self.eps_model(x_i, torch.tensor(i / self.n_T).repeat(n_sample))
        return x_i


ddpm = DDPM(eps_model=SimpleUnet(), betas=(1e-4, 0.02), n_T=300)
for i in range(100):
    x = torch.randn(16, 3, 64, 64)
    loss = ddpm(x)
    loss.backward()
