"""A NaN made of the -inf that a reduction has left of nothing but masked values: who is named."""

from __future__ import annotations

import torch
from torch import nn

from tests.unit.agent.ops.test_after_model import line_of
from tests.unit.agent.ops.test_locate import Locating, locating


class BestOf(nn.Module):
    """The largest of the scores that are allowed."""

    def forward(self, scores: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        kept = scores.masked_fill(~allowed, float("-inf"))
        return kept.amax(-1)


class Ranker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.best, self.scale, self.head = BestOf(), nn.Identity(), nn.Linear(3, 2)
        with torch.no_grad():  # of weights of one sign -inf stays -inf
            self.head.weight.copy_(torch.tensor([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]]))

    def forward(self, scores: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        return self.head(self.scale(self.best(scores, allowed) * 2.0))


def named(agent: Locating) -> tuple[str, int | None]:
    located = agent.located[0]
    assert located is not None
    assert located.report is not None, located.sentences
    return located.report.name, located.report.line


def test_a_reduction_in_another_layer_than_the_one_that_made_the_nan() -> None:
    model, allowed = Ranker(), torch.ones(4, 3, 5, dtype=torch.bool)
    with locating() as agent:
        allowed[..., 3:] = False
        model(torch.randn(4, 3, 5), allowed)
        assert not agent.located  # of a row with one allowed value the largest is finite
        allowed[2, 1:] = False
        model(torch.randn(4, 3, 5), allowed)
    assert named(agent) == ("aten.amax.default", line_of(BestOf.forward, ".amax(-1)"))
    located = agent.located[0]
    assert located is not None and located.report is not None
    way = [passed.op for passed in located.report.way]
    assert (way[0], way[-1]) == ("aten.amax.default", "aten.addmm.default")
    assert [passed.module for passed in located.report.way][-1] == "head"


class ByHand(nn.Module):
    """A softmax, whose difference is explained where it is."""

    def forward(self, scores: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        kept = torch.where(allowed, scores, -torch.inf)
        shifted = kept - kept.amax(-1, keepdim=True)
        return shifted.exp() / shifted.exp().sum(-1, keepdim=True)


def test_inf_minus_inf_of_a_softmax_by_hand() -> None:
    allowed = torch.ones(3, 4, dtype=torch.bool)
    allowed[1] = False
    with locating() as agent:
        ByHand()(torch.randn(3, 4), allowed)
    assert named(agent) == ("aten.sub.Tensor", line_of(ByHand.forward, "kept - kept.amax("))


class Gate(nn.Module):
    """The near miss: its -inf is written, no reduction has left it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, scores: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        total = scores.sum(-1, keepdim=True)
        return self.head(scores.masked_fill(~allowed, -torch.inf)) + total


def test_a_layer_that_is_given_what_is_masked_is_named_itself() -> None:
    allowed = torch.ones(3, 4, dtype=torch.bool)
    allowed[1] = False
    with locating() as agent:
        Gate()(torch.randn(3, 4), allowed)
    assert named(agent) == ("aten.addmm.default", line_of(Gate.forward, "self.head("))
