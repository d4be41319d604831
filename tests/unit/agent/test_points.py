"""A function is replaced wherever modules have it, also where that was looked for before a fork."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from tensorpoint.agent import points
from tensorpoint.agent.points import Namespaces, Point, forget_ahead, look_ahead


def _one() -> int:
    return 1


def _two() -> int:
    return 2


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module with two functions, which another has under names of its own."""
    _add(monkeypatch, "made_up_owner", one=_one, two=_two)
    _add(monkeypatch, "made_up_user", uno=_one, due=_two)
    yield "made_up_owner"
    forget_ahead()


def _add(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: Any) -> Any:
    module = types.ModuleType(name)
    vars(module).update(attributes)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def _replaced(target: str) -> Point:
    point = Point(target, lambda _, original: lambda: -original())
    point.install()
    Namespaces().replace([point])
    return point


def test_names_in_other_modules_are_replaced_and_put_back(owner: str) -> None:
    user: Any = sys.modules["made_up_user"]
    point = _replaced(f"{owner}:one")
    assert (user.uno(), user.due()) == (-1, 2)
    point.remove()
    assert user.uno is _one


def test_what_was_looked_for_before_is_not_looked_for_again(
    owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_ahead([f"{owner}:one", "no_such_module:name", f"{owner}:none"])
    later = _add(monkeypatch, "made_up_later", one=_one)
    looked: list[str] = []
    names_of = points._names_of
    monkeypatch.setattr(
        points,
        "_names_of",
        lambda wanted, modules: names_of(wanted, looked.extend(modules) or looked),
    )
    point = _replaced(f"{owner}:one")
    assert looked == ["made_up_later"]
    user: Any = sys.modules["made_up_user"]
    assert (user.uno(), later.one()) == (-1, -1)
    point.remove()
    assert user.uno is later.one is _one


@pytest.mark.parametrize("forgotten", [False, True])
def test_others_and_later_names_are_looked_for_everywhere(owner: str, forgotten: bool) -> None:
    user: Any = sys.modules["made_up_user"]
    look_ahead([f"{owner}:one"])
    if forgotten:  # the program has begun, and may have given it a name in any module
        forget_ahead()
        user.again = _one
        point = _replaced(f"{owner}:one")
        assert user.again() == -1
    else:
        point = _replaced(f"{owner}:two")  # of an adapter that was not there before
        assert user.due() == -2
    point.remove()


def test_a_name_that_has_gone_meanwhile_stays_gone(owner: str) -> None:
    user: Any = sys.modules["made_up_user"]
    look_ahead([f"{owner}:one"])
    user.uno = "something else"
    _replaced(f"{owner}:one").remove()
    assert user.uno == "something else"


def test_a_newest_module_that_has_gone_is_no_fault(
    owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _add(monkeypatch, "made_up_newest")
    look_ahead([f"{owner}:one"])
    monkeypatch.delitem(sys.modules, "made_up_newest")
    point = _replaced(f"{owner}:one")
    assert sys.modules["made_up_user"].uno() == -1
    point.remove()
