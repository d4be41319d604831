"""Several heads on one trunk, inputs and outputs as dictionaries, losses that are weighted."""

import torch
from torch import Tensor, nn


class MultiTask(nn.Module):
    def __init__(self, tasks: dict[str, int], width: int = 48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.LayerNorm(width))
        self.heads = nn.ModuleDict({name: nn.Linear(width, n) for name, n in tasks.items()})
        self.log_vars = nn.Parameter(torch.zeros(len(tasks)))

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        h = self.trunk(batch["features"])
        h = h * batch["weight"].unsqueeze(-1)
        return {name: head(h) for name, head in self.heads.items()}


model = MultiTask({"age": 1, "gender": 2, "race": 5})
outputs = model({"features": torch.randn(32, 20), "weight": torch.ones(32)})
loss = sum(o.pow(2).mean() for o in outputs.values())
