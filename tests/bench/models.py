"""The training loops that are measured: a GPT-2 of transformers, a small ResNet, a tiny MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

_ROWS = 2
_IMAGES = 16


@dataclass(frozen=True)
class Training:
    """A model and what trains it for one step: forward, backward, optimizer."""

    model: nn.Module
    step: Callable[[], None]


def gpt2() -> Training:
    """GPT-2 with 6 layers, width 384, 6 heads, 128 tokens a row."""
    config = GPT2Config(
        n_layer=6,
        n_embd=384,
        n_head=6,
        n_positions=128,
        vocab_size=4096,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    tokens = torch.randint(config.vocab_size, (_ROWS, config.n_positions))
    return _training(model, lambda: model(input_ids=tokens, labels=tokens).loss)


def resnet() -> Training:
    """A ResNet-18 without its stem, half as wide, on 32 x 32 images."""
    model = _ResNet((32, 64, 128, 256))
    images = torch.randn(_IMAGES, 3, 32, 32)
    labels = torch.randint(10, (_IMAGES,))
    return _training(model, lambda: functional.cross_entropy(model(images), labels))


def mlp() -> Training:
    """Three small layers: a step of less than a millisecond, of which Python is most."""
    model = nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    rows, labels = torch.randn(16, 32), torch.randint(10, (16,))
    return _training(model, lambda: functional.cross_entropy(model(rows), labels))


MODELS: dict[str, Callable[[], Training]] = {"GPT-2": gpt2, "ResNet": resnet, "MLP": mlp}


def _training(model: nn.Module, loss: Callable[[], Tensor]) -> Training:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return Training(model, step)


class _Block(nn.Module):
    def __init__(self, wide: int, to: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(wide, to, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(to)
        self.conv2 = nn.Conv2d(to, to, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(to)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or wide != to:
            self.shortcut = nn.Sequential(
                nn.Conv2d(wide, to, 1, stride, bias=False), nn.BatchNorm2d(to)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class _ResNet(nn.Module):
    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()
        )
        blocks: list[nn.Module] = []
        wide = widths[0]
        for depth, to in enumerate(widths):
            blocks += [_Block(wide, to, 1 if depth == 0 else 2), _Block(to, to, 1)]
            wide = to
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(wide, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean(dim=(2, 3)))
