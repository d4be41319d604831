"""A small network learns to tell points inside a circle from those outside. Its loss becomes NaN.

Debug this file with Tensorpoint (F5): it stops where the NaN is made.
"""

import torch
from torch import nn


class Radius(nn.Module):
    """The distance of each point from the origin, on a scale that is learned."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, points):
        return torch.log(points.norm(dim=1, keepdim=True)) * self.scale


class Circle(nn.Module):
    def __init__(self):
        super().__init__()
        self.radius = Radius()
        self.classify = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, points):
        return self.classify(self.radius(points)).squeeze(1)


def main():
    torch.manual_seed(0)
    model = Circle()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(60):
        points = torch.randn(64, 2)
        if step == 40:
            points[7] = 0.0  # a point at the origin: the logarithm of its distance is -inf
        inside = (points.norm(dim=1) < 1).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(points), inside)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:2}  loss {loss.item():.4f}")


main()
