"""What a specification can't mean is refused with what there is, and notebooks are traced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tensorpoint.shapes.notebooks import BadNotebook, Notebook
from tensorpoint.shapes.show import as_json
from tensorpoint.shapes.tracing.main import table_of
from tensorpoint.shapes.tracing.sizes import clash_of
from tensorpoint.wire.shapes import ShapeRequest, ShapeTable
from tests.conftest import Write

NET = """
import torch
from torch import nn

class Net(nn.Module):
    {comment}
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x, mask=None):
        y = self.fc(x)
        return y
"""


def trace(path: Path, *specs: str, own: bool = True) -> ShapeTable:
    text = path.read_text("utf-8")
    return table_of(ShapeRequest(str(path), text, specs=specs, symbolic=False, own_specs=own))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("y: f32[B, 8]", "there is no such argument: Net(x, mask)"),
        ("x: f32[B, 8], T <= 5", "the limit T <= 5: no input has a size T; there are B"),
        ("x: f32[3, 8], T <= 5", "the limit T <= 5: no input has a size T; they are all numbers"),
        ("x: f23[B, 8]", "'f23' is no dtype; known are f32"),
        ("x: f32[B 8]", "'f32[B 8]': invalid syntax"),
        ("x: f32[B, 8], B < 0", "no size B satisfies B < 0"),
        ("x: f32[B, 8], B < 5, B < 9, B > 7", "no size B satisfies B < 5 and B > 7"),
    ],
)
def test_an_option_that_can_not_be_meant_is_refused(write: Write, spec: str, said: str) -> None:
    table = trace(write(NET.format(comment="")), spec)
    assert said in " ".join(table.untraced) and not table.hints and not table.calls


def test_what_is_said_for_all_files_may_be_about_others(write: Write) -> None:
    path = write(NET.format(comment=""))
    assert not trace(path, "x: f32[B, 8], images: f32[B, 3, H, W], T <= 5", own=False).untraced


def test_a_comment_that_names_no_argument_is_said_and_the_rest_is_taken(write: Write) -> None:
    table = trace(write(NET.format(comment="# tensorpoint: x: f32[B, T, 8], y: f32[B]")))
    [call] = table.calls
    assert call.inputs[0].origin == "spec"
    assert table.untraced == (
        "a specification says what y is, but there is no such argument: Net(x, mask)",
    )


def test_keywords_of_any_name_may_be_said(write: Write) -> None:
    path = write(NET.format(comment="").replace("mask=None", "**kwargs"))
    assert not trace(path, "x: f32[B, 8], extra: f32[B]").untraced


@pytest.mark.parametrize(
    ("limits", "shown"),
    [
        ("T == 1", "f32[B, 1, 4]"),
        ("T <= 2", "f32[B, T, 4]"),
        ("T <= 8, B == 1", "f32[1, T, 4]"),
        ("T >= 100, T < 120", "f32[B, T, 4]"),
        ("T >= 100000", "f32[B, T, 4]"),
        ("T % 96 == 0", "f32[B, T, 4]"),
        ("T % 96 == 3, B > 70", "f32[B, T, 4]"),
    ],
)
def test_limits_that_leave_out_the_usual_sizes_have_others(
    write: Write, limits: str, shown: str
) -> None:
    table = trace(write(NET.format(comment="")), f"x: f32[B, T, 8], {limits}")
    texts = {each.text for each in table.hints if each.name == "y"}
    assert texts == {shown}, table.untraced


@pytest.mark.parametrize(
    ("limits", "clash"),
    [
        (["B < 1"], ["B < 1"]),
        (["B < 2"], []),
        (["T % 8 == 0", "T < 8"], ["T % 8 == 0", "T < 8"]),
        (["T % 8 == 0", "T <= 8"], []),
        (["T % 2 == 0", "B >= 9", "T % 4 == 1"], ["T % 2 == 0", "T % 4 == 1"]),
        (["T % 2 == 0", "T % 3 == 1", "T >= 500"], []),
        (["T >= 100", "T <= 103", "T % 8 == 5", "T % 3 == 0"],
         ["T >= 100", "T <= 103", "T % 8 == 5", "T % 3 == 0"]),
    ],
)  # fmt: skip
def test_the_fewest_limits_that_clash(limits: list[str], clash: list[str]) -> None:
    assert [*clash_of(limits)] == clash


def test_the_code_cells_of_a_notebook_are_one_text_and_places_are_in_cells() -> None:
    def cell(kind: str, source: Any) -> dict[str, Any]:
        return {"cell_type": kind, "source": source}

    cells = [
        cell("markdown", "# Net"),
        cell("code", ["%matplotlib inline\n", "import torch"]),
        cell("code", NET.format(comment="")),
        cell("code", "out = Net()(torch.zeros(5, 8))"),
    ]
    notebook = Notebook(json.dumps({"cells": cells, "nbformat": 4}))
    assert notebook.lines[0] == "%matplotlib inline" and notebook.text.startswith("\nimport torch")
    table = table_of(ShapeRequest("/nowhere/net.ipynb", notebook.text, symbolic=False))
    hints = {each["name"]: each for each in as_json(table, notebook)["hints"]}
    assert (hints["y"]["cell"], hints["y"]["line"], hints["y"]["text"]) == (2, 13, "f32[B, 4]")
    assert (hints["out"]["cell"], hints["out"]["line"]) == (3, 1)
    for text in ("x = 1", "[]", '{"worksheets": []}'):
        with pytest.raises(BadNotebook, match="it is no notebook"):
            Notebook(text)
