"""Globs that name nothing: when it is said, and what is near."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import tensorpoint
from tensorpoint import TensorpointWarning
from tensorpoint.agent.near import below_the_root, near, without_numbers


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.Linear(2, 2)
        self.mlp = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.attn(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


X = torch.ones(3, 2)


@pytest.fixture
def told() -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ('nonfinite("layer.*.atn")', "matches 'layer.*.atn'; near to it: layers.*.attn"),
        ('nonfinite("typo.*")', "below the model there are: layers, norm"),
        ('nonfinite("model.layers.*")', 'paths begin below the model: "layers.*"'),
        ('nonfinite("Block")', "which is a class; the paths of its modules: layers.*"),
        ('absmax("norm.weight") > 9', 'which is a parameter; name its module: "norm"'),
        ("layer:Blck", "no layer so far is called Blck, by its path or class; near to it: Block"),
    ],
)
def test_what_names_nothing_is_said_at_the_end_of_its_watch(
    condition: str, words: str, told: list[warnings.WarningMessage]
) -> None:
    with tensorpoint.watch(condition):
        Net()(X)
    (warning,) = told
    assert warning.category is TensorpointWarning
    assert words in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize(
    "condition",
    [
        'nonfinite("layers.*.mlp")',
        "nonfinite()",
        'grad_norm("norm.weight") > 1e9',
        'update_ratio("*.weight") > 1e9',
        "grad_norm() > 1e9",
        "layer:Block if step > 99",
    ],
)
def test_what_names_something_is_not(condition: str, told: list[warnings.WarningMessage]) -> None:
    def once() -> None:
        Net()(X)  # a model that is gone when the watch ends

    with tensorpoint.watch(condition):
        once()
        gc.collect()
    assert not told


def test_where_nothing_was_called_nothing_is_missed(told: list[warnings.WarningMessage]) -> None:
    other = Net()
    with tensorpoint.watch("nonfinite()"):
        other(X)
    with tensorpoint.watch('nonfinite("typo")'):
        pass
    assert not told


def test_a_second_model_may_have_what_is_named(told: list[warnings.WarningMessage]) -> None:
    first, second = Net(), nn.Sequential(Net())
    with tensorpoint.watch('nonfinite("0.norm")'):
        first(X)
        first(X)
        second(X)
    assert not told


def test_a_training_is_told_when_its_optimizer_has_stepped_and_once(
    told: list[warnings.WarningMessage],
) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    counts: list[int] = []
    with tensorpoint.watch('nonfinite("typo")'):
        for _ in range(3):
            model(X).sum().backward()
            counts.append(len(told))
            optimizer.step()
    assert counts == [0, 1, 1]
    assert len(told) == 1
    assert told[0].filename == __file__


def test_what_never_trains_is_told_after_a_hundred_calls(
    told: list[warnings.WarningMessage],
) -> None:
    model = Net()
    with tensorpoint.watch('nonfinite("typo")'):
        for _ in range(99):
            model(X)
        assert not told
        model(X)
        assert len(told) == 1


def test_a_warning_that_is_an_error_comes_at_the_end_and_breaks_no_watch() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    steps: list[int] = []

    @tensorpoint.watch('nonfinite("typo")')
    def train() -> None:
        for step in range(3):
            model(X).sum().backward()
            optimizer.step()
            steps.append(step)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TensorpointWarning, match="typo"):
            train()
    assert steps == [0, 1, 2]


def test_an_exception_of_the_body_is_not_replaced(told: list[warnings.WarningMessage]) -> None:
    @tensorpoint.watch('nonfinite("typo")')
    def fail() -> None:
        Net()(X)
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not told


def test_names_that_are_near() -> None:
    names = ["h.0.attn", "h.0.mlp.c_fc", "h.1.attn", "h.1.mlp.c_fc", "ln_f"]
    few = without_numbers(names)
    assert few == ["h.*.attn", "h.*.mlp.c_fc", "ln_f"]
    assert near("*.atn", few) == ["h.*.attn"]
    assert near("*.mlp.c_fcc", few)[0] == "h.*.mlp.c_fc"
    assert near("c_fc", few)[0] == "h.*.mlp.c_fc"
    assert near("nothing_like_it", few) == []
    assert below_the_root("transformer.h.*.attn", names) == "h.*.attn"
    assert below_the_root("typo.*", names) == ""
