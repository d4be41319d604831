"""A model of 2,000 modules."""

import torch
from torch import nn

torch.set_num_threads(1)


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


model = nn.Sequential(*(nn.Sequential(*(Cell() for _ in range(10))) for _ in range(49)))
model(torch.ones(1, 2))
model(torch.ones(1, 2))
