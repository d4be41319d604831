"""Installed classes, and functions that make modules, in the place of a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorpoint.shapes.tracing.main import table_of
from tensorpoint.shapes.tracing.objects import load_object, make_object
from tensorpoint.shapes.tracing.targets import CannotMake
from tensorpoint.wire.shapes import ShapeRequest

REGISTRY = """
MAKERS = {}

def register():
    def keep(maker):
        if maker.__name__ in MAKERS:
            raise ValueError(f"{maker.__name__} is registered already")
        MAKERS[maker.__name__] = maker
        return maker
    return keep
"""
NETS = """
from functools import wraps

import torch

from .registry import register


def documented(maker):
    @wraps(maker)
    def inner(**options):
        return maker(**options)
    return inner


class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, width, 3, 2, 1)

    def forward(self, x):
        y = self.conv(x)
        return y.flatten(2)


@register()
@documented
def small(*, width=8):
    return Net(width)


@register()
def weights():
    return {"conv": 3}
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tmp_path / "zoo_of_nets"
    folder.mkdir()
    for name, text in (("__init__", ""), ("registry", REGISTRY), ("nets", NETS)):
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder.name
    for name in [name for name in sys.modules if name.partition(".")[0] == folder.name]:
        del sys.modules[name]


def test_a_function_that_makes_a_module_is_traced_as_its_class_is(
    package: str, tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"width": 16}))
    name = f"{package}.nets:small"
    table = table_of(ShapeRequest("", "", object=name, config=str(config), symbolic=False))
    assert not table.untraced
    [call] = table.calls
    assert (call.qualname, call.constructor) == ("small", "small(**config)")
    assert call.output == "f32[B, 16, ceil(H/2)*ceil(W/2)]"
    texts = {(hint.name, hint.kind): hint.text for hint in table.hints}
    assert texts["y", "target"] == "f32[B, 16, ceil(H/2), ceil(W/2)]"
    # The library's own registry has what it had.
    registry = sys.modules[f"{package}.registry"]
    assert registry.MAKERS["small"]().conv.weight.shape[0] == 8


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nets:weights", "it makes a dict, not a module"),
        ("registry:MAKERS", "neither a module class nor a function"),
        ("nets:absent", "has no attribute 'absent'"),
    ],
)
def test_what_makes_no_module_is_refused_with_the_reason(package: str, name: str, why: str) -> None:
    with pytest.raises(CannotMake, match=why):
        make_object(*load_object(f"{package}.{name}"), "")
