"""What the nonfinite watch leaves unread, being known to be finite, and what it must read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.agent.armed import armed

NAN = float("nan")
X = torch.ones(4, 2)


class Inline(nn.Module):
    """A layer, something done between, and an activation."""

    def __init__(self, between: Any, activation: nn.Module) -> None:
        super().__init__()
        self.layer, self.between, self.activation = nn.Linear(2, 2), between, activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.between(self.layer(x)))


class OddReLU(nn.ReLU):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.relu(input) / 0 * 0


def replaced_relu() -> nn.Module:
    activation = nn.ReLU()
    activation.forward = lambda x: torch.relu(x) * NAN  # type: ignore[method-assign]
    return activation


@pytest.mark.parametrize(
    ("model", "event", "entered"),
    [
        (Inline(lambda x: x * NAN, nn.ReLU()), "", "activation"),
        (Inline(lambda x: x.mul_(NAN), nn.ReLU(inplace=True)), "", "activation"),
        (Inline(lambda x: x, OddReLU()), "activation", "activation"),
        (Inline(lambda x: x, replaced_relu()), "activation", "activation"),
    ],
    ids=["made inline", "made in place", "a subclass", "another forward"],
)
def test_a_value_made_around_a_harmless_layer_is_seen_there(
    model: Inline, event: str, entered: str
) -> None:
    with torch.no_grad(), armed() as agent:
        model(X)
    assert agent.places == [event]
    assert agent.event.entered is getattr(model, entered)


def read_in(model: nn.Module, x: torch.Tensor) -> int:
    """How many outputs are read in a call of the model, in which nothing is bad."""
    with armed() as agent:
        look, found = agent.nonfinite._look, []

        def looking(output: Any, seen: Any) -> Any:
            if seen is None or seen[0]() is not output:
                found.append(output)
            return look(output, seen)

        agent.nonfinite._look = looking
        model(x)
    assert agent.stops == []
    return len(found)


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.ReLU(inplace=True), nn.Identity(), nn.Dropout(0.5)]
)
def test_a_harmless_layer_after_a_finite_one_is_not_read(activation: nn.Module) -> None:
    assert read_in(nn.Sequential(nn.Linear(2, 2), activation, nn.Linear(2, 2)), X) == 2


def test_a_shortcut_around_a_block_is_not_read_again() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.shortcut = nn.Linear(2, 2), nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + self.shortcut(x)

    # The layers and what the block makes of them; not what came in.
    assert read_in(nn.Sequential(nn.Linear(2, 2), Block()), X) == 3


def test_dropout_overflows_half_precision() -> None:
    model = nn.Sequential(nn.Identity(), nn.Dropout(0.9))
    with armed() as agent:
        model(torch.full((64,), 6e4, dtype=torch.float16))
    assert agent.places == ["1"]


def test_a_tuple_of_what_was_looked_at_holds_no_surprise() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
            return self.layer(x), None, x.log()

    with armed() as agent:
        Pair()(X.abs() + 1)
        assert agent.stops == []
        Pair()(-X.abs() - 1)
    assert agent.event.tensor is not None
    assert agent.event.tensor.name == "output[2]"
