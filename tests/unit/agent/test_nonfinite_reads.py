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


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.ReLU(inplace=True), nn.Identity()])
def test_a_harmless_layer_after_a_finite_one_is_not_read(activation: nn.Module) -> None:
    with armed() as agent:
        look, known = agent.nonfinite._look, []

        def looking(output: Any, seen: Any, is_known: bool = False) -> Any:
            known.append(is_known)
            return look(output, seen, is_known)

        agent.nonfinite._look = looking
        nn.Sequential(nn.Linear(2, 2), activation, nn.Linear(2, 2))(X)
    assert known == [False, True, False, False]
    assert agent.stops == []


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
