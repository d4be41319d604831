"""Contrastive learning with two views."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class SimCLR(nn.Module):
    def __init__(self, encoder_dim=64, projection_dim=32, temperature=0.5):
        super().__init__()
        self.temperature = temperature
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, encoder_dim, 3, 2, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.projector = nn.Sequential(
            nn.Linear(encoder_dim, encoder_dim), nn.ReLU(), nn.Linear(encoder_dim, projection_dim)
        )

    def forward(self, x_i, x_j):
        h_i = self.encoder(x_i)
        h_j = self.encoder(x_j)
        z_i = self.projector(h_i)
        z_j = self.projector(h_j)
        loss = self.nt_xent(z_i, z_j)
        return h_i, h_j, loss

    def nt_xent(self, z_i, z_j):
        batch_size = z_i.size(0)
        z = torch.cat([z_i, z_j], dim=0)
        sim = F.cosine_similarity(z.unsqueeze(1), z.unsqueeze(0), dim=2) / self.temperature
        sim_i_j = torch.diag(sim, batch_size)
        sim_j_i = torch.diag(sim, -batch_size)
        positives = torch.cat([sim_i_j, sim_j_i], dim=0)
        mask = ~torch.eye(2 * batch_size, dtype=torch.bool, device=z.device)
        denominator = mask * torch.exp(sim)
        return -torch.log(torch.exp(positives) / denominator.sum(dim=1)).mean()


model = SimCLR()
views = torch.randn(32, 3, 96, 96), torch.randn(32, 3, 96, 96)
_, _, loss = model(*views)
