"""Raises an exception after a few steps, which nobody catches."""

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
for _ in range(3):
    model(torch.ones(2, 4))
raise ValueError("the labels are missing")  # raises
