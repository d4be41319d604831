"""The program that `layer_steps` steps through: blocks of tiny layers, over and over."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.two(torch.relu(self.one(x)))


def run(model: nn.Module, batch: torch.Tensor) -> None:
    outputs: list[torch.Tensor] = []
    step = 0
    with torch.no_grad():
        while True:
            step += 1  # stop here
            output = model(batch)
            outputs = [*outputs[-8:], output]


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    run(nn.Sequential(*(Block() for _ in range(4))), torch.randn(4, 8))
