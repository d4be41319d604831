"""Models that are made anew, as in each epoch or trial: ids of the ones before are given again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

import tensorpoint
from tensorpoint.agent.modules import Names
from tensorpoint.agent.rules import Rule
from tensorpoint.agent.watches.base import Watch
from tensorpoint.wire import Stop, Tensorpoint
from tests.unit.agent.armed import armed

MODELS = 12


@pytest.mark.parametrize(
    "condition",
    [
        'grad_norm("0") > 0',
        'grad_norm("0.weight") > 0',
        'update_ratio("0") > 0',
        'update_norm("0.weight") > 0',
        'absmax("0") > 0',
        'zero_fraction("0") < 0.9',
        'absmax("0") > 0 and last(grad_norm("0")) > 0',
    ],
)
def test_each_is_looked_at_and_none_is_kept(condition: str) -> None:
    stops: list[Stop] = []
    models: list[weakref.ref[nn.Module]] = []
    counts: list[int] = []
    with tensorpoint.watch(condition, on=stops.append):
        for _ in range(MODELS):
            model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
            models.append(weakref.ref(model))
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.randn(2, 8)).pow(2).mean().backward()
                optimizer.step()
            counts.append(len(stops))
            del model, optimizer
            gc.collect()
            stops[:] = [stop for stop in stops if stop.module == "0"]
        assert [model() for model in models] == [None] * MODELS
    assert counts == [*range(1, MODELS + 1)]


@pytest.mark.parametrize("hear", [lambda watches: watches, lambda watches: []])
def test_what_the_hooks_know_of_modules_goes_with_them(
    hear: Callable[[Sequence[Watch]], Sequence[Watch]],
) -> None:
    with armed() as agent:
        agent.hooks.listen(hear(agent.watches))
        for _ in range(MODELS):
            model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
            model(torch.randn(2, 8))
            assert len(agent.hooks._inside.roots) == 2
            del model
            gc.collect()
        assert not agent.hooks._inside.roots
        part = nn.Linear(8, 8)
        nn.Sequential(part)(torch.randn(2, 8))
        gc.collect()
        assert not agent.hooks._inside.roots  # the root is gone


def test_what_is_known_by_the_id_of_one_that_is_gone_is_forgotten() -> None:
    names, rule = Names(), Rule(Tensorpoint(1, "condition", "nonfinite()"))
    names.on_named = rule.forget
    model = nn.Sequential(nn.Linear(1, 1))
    place = (id(model[0]), "forward")
    rule.true_at.add(place)
    names.learn(model)  # it is new: what is there is of another with its id
    assert place not in rule.true_at
    rule.true_at.add(place)
    names.learn(nn.Sequential(model))
    assert place in rule.true_at
