"""The program that `latency` steps through: a loop like a training loop's, with a few locals."""

import torch


def train(model: torch.nn.Module, batch: torch.Tensor) -> None:
    losses: list[float] = []
    step = 0
    while True:
        step += 1  # stop here
        output = model(batch)
        loss = output.pow(2).mean()
        losses = [*losses[-8:], float(loss)]


if __name__ == "__main__":
    torch.manual_seed(0)
    train(torch.nn.Linear(8, 8), torch.randn(4, 8))
