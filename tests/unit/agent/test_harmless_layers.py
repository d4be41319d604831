"""Layers whose backward makes nothing bad have no hook of their own: who is blamed around them."""

from __future__ import annotations

import pytest
from torch import nn

from tests.unit.agent.spoiling import Does, Spoils, lin, spoil, trained


@pytest.mark.parametrize(
    "between",
    [
        (nn.ReLU(),),
        (nn.ReLU(inplace=True),),
        (nn.Dropout(0.01), nn.Identity(), nn.Hardtanh(-9, 9)),
        (nn.Unflatten(1, (2, 1)), nn.Flatten()),
    ],
    ids=["relu", "relu in place", "dropout", "views"],
)
def test_what_comes_after_them(between: tuple[nn.Module, ...]) -> None:
    module = nn.Sequential(lin(), *between, Spoils(), lin())
    assert trained(module).places == [str(1 + len(between))]
    operation = Does(
        lambda self, x: self.b(spoil(self.between(self.a(x)))),
        a=lin(),
        b=lin(),
        between=nn.Sequential(*between),
    )
    assert trained(nn.Sequential(lin(), operation)).places == ["1"]


def block() -> nn.Module:
    return Does(lambda self, x: self.relu(x + self.f(x) ** 2), f=lin(), relu=nn.ReLU())


def test_a_residual_block_that_ends_in_one() -> None:
    assert trained(nn.Sequential(lin(), block(), Spoils(), block())).places == ["2"]
    between = Does(lambda self, x: self.b(spoil(self.a(x))), a=block(), b=block())
    assert trained(nn.Sequential(lin(), between)).places == ["1"]


def test_a_replaced_forward_is_not_harmless() -> None:
    replaced = nn.ReLU()
    replaced.forward = spoil  # type: ignore[method-assign,assignment]
    assert trained(nn.Sequential(lin(), replaced, lin())).places == ["1"]
