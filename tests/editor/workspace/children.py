"""Starts a process that makes a NaN."""

import multiprocessing

import torch
from torch import nn


class Gate(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x)


def work() -> None:
    torch.set_num_threads(1)
    Gate()(torch.tensor([1.0, -1.0]))  # in the child


if __name__ == "__main__":
    child = multiprocessing.Process(target=work)
    child.start()
    child.join()
