"""A network for a differential equation: derivatives by autograd."""

import torch
import torch.nn as nn


class PINN(nn.Module):
    def __init__(self, layers=(2, 32, 32, 1)):
        super().__init__()
        self.linears = nn.ModuleList([nn.Linear(a, b) for a, b in zip(layers, layers[1:])])

    def forward(self, x, t):
        u = torch.cat([x, t], dim=1)
        for linear in self.linears[:-1]:
            u = torch.tanh(linear(u))
        u = self.linears[-1](u)
        return u


def residual(model, x, t, nu=0.01 / torch.pi):
    x.requires_grad_(True)
    t.requires_grad_(True)
    u = model(x, t)
    u_t = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)[0]
    u_x = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
    u_xx = torch.autograd.grad(u_x, x, torch.ones_like(u), create_graph=True)[0]
    return u_t + u * u_x - nu * u_xx


model = PINN()
for _ in range(1000):
    x, t = torch.rand(256, 1), torch.rand(256, 1)
    loss = residual(model, x, t).pow(2).mean()
    loss.backward()
