"""A mixture of densities: its parameters, and the likelihood as a loss."""

import torch
import torch.nn as nn


class MDN(nn.Module):
    def __init__(self, n_hidden=20, n_gaussians=5):
        super().__init__()
        self.z_h = nn.Sequential(nn.Linear(1, n_hidden), nn.Tanh())
        self.z_pi = nn.Linear(n_hidden, n_gaussians)
        self.z_mu = nn.Linear(n_hidden, n_gaussians)
        self.z_sigma = nn.Linear(n_hidden, n_gaussians)

    def forward(self, x):
        z_h = self.z_h(x)
        pi = nn.functional.softmax(self.z_pi(z_h), -1)
        mu = self.z_mu(z_h)
        sigma = torch.exp(self.z_sigma(z_h))
        return pi, mu, sigma


def mdn_loss(y, mu, sigma, pi):
    m = torch.distributions.Normal(loc=mu, scale=sigma)
    loss = torch.exp(m.log_prob(y))
    loss = torch.sum(loss * pi, dim=1)
    return torch.mean(-torch.log(loss))


x_data = torch.linspace(-10, 10, 2500).unsqueeze(1)
y_data = 7 * torch.sin(0.75 * x_data) + 0.5 * x_data
model = MDN()
for _ in range(10000):
    pi, mu, sigma = model(x_data)
    loss = mdn_loss(y_data, mu, sigma, pi)
    loss.backward()
