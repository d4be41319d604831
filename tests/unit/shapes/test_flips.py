"""The other side of branches: which sizes lead there, and what fails at them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpoint.shapes.branches import sizes_for
from tensorpoint.shapes.tracing.main import table_of
from tensorpoint.wire.codec import convert
from tensorpoint.wire.shapes import Question, ShapeRequest, ShapeTable
from tests.bench.branched import program
from tests.conftest import Write
from tests.unit.shapes.marks import marked

PROGRAMS = Path(__file__).parents[2] / "programs" / "shapes"


def ask(question: Any) -> Any:
    return sizes_for(convert(question, Question))


def trace(path: Path) -> ShapeTable:
    return table_of(ShapeRequest(str(path), path.read_text("utf-8")), ask)


def test_faults_behind_branches_are_where_the_comments_say_and_nowhere_else() -> None:
    path = PROGRAMS / "turned.py"
    table = trace(path)
    expected = marked(path.read_text("utf-8"), "fault")
    found = {each.span.line: each.message for each in table.diagnostics}
    assert found.keys() == expected.keys(), found
    assert len(expected) == 5
    assert {"Fine", "Images"} <= {call.qualname for call in table.calls} and not table.untraced
    for line, said in expected.items():
        assert found[line].startswith(f"{said}: "), found[line]
    for each in table.diagnostics:
        assert (each.severity, each.code) == ("warning", "shape-mismatch")
        at = dict(re.findall(r"(\w) = (\d+)", each.message.split(":")[0]))
        assert at and all(each.witness[name] == int(size) for name, size in at.items())


RETURNS = """
import torch
from torch import nn

class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.small, self.big = nn.Linear(16, 64), nn.Linear(16, 128)

    def forward(self, x):  # tensorpoint: x: f32[B, T, 16]
        if x.shape[0] > 1:
            x = x + 1
        if x.shape[1] > 9:
            return self.big(x)
        return self.small(x), x
"""


def test_what_comes_out_assumes_the_side_of_a_branch_that_returns_it(write: Write) -> None:
    (call,) = trace(write(RETURNS)).calls
    assert (call.output, call.assumptions) == ("f32[B, T, 128]", ("T > 9",))


def test_each_of_many_independent_branches_is_turned_once(write: Write) -> None:
    path = write(program(16))
    lines = path.read_text("utf-8").split("\n")
    faults = [n for n, line in enumerate(lines, 1) if "self.wrong(" in line]
    table = trace(path)
    assert [each.span.line for each in table.diagnostics] == faults and len(faults) == 8
    assert {each.opposite for each in table.conditions if each.own} >= {"D0 == 1500", "D1 > 5001"}
    assert not table.untraced


def test_sizes_are_near_and_keep_to_what_is_asked() -> None:
    base = {"B": 3, "T": 19}
    path = ("(<= T 100)", "(= (mod T 2) 1)", "(< (* B T) 1000)")
    wanted = ((0,), (1,), (2,), (0, 1))
    far, even, both, together = sizes_for(Question(base, (), path, wanted))
    assert far == {"B": 3, "T": 101}
    assert even and even["B"] == 3 and abs(even["T"] - 19) == 1
    assert both and both["B"] * both["T"] >= 1000 and both["T"] <= 100 and both["T"] % 2
    assert together == {"B": 3, "T": 102}
    assert sizes_for(Question(base, ("(<= T 90)",), path, ((0,),))) == [None]
    assert sizes_for(Question(base, (), ("(? T)",), ((0,),))) == [None]


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 300),
    st.integers(1, 300),
    st.integers(2, 40),
    st.integers(0, 39),
    st.sampled_from(["=", "<", "<="]),
)
def test_the_nearest_size_is_nearest(base: int, limit: int, k: int, r: int, operator: str) -> None:
    conditions = (f"(not ({operator} T {limit}))", f"(distinct (mod T {k}) {r % k})")
    answers = sizes_for(Question({"T": base}, (), conditions, ((0,), (1,))))

    def holds(index: int, t: int) -> bool:
        first = t == limit if operator == "=" else t < limit if operator == "<" else t <= limit
        return first if index == 0 else not first and t % k == r % k

    for index, answer in enumerate(answers):
        fitting = [t for t in range(1, 1000) if holds(index, t)]
        if answer is None:
            assert not fitting
        else:
            nearest = min(abs(t - base) for t in fitting)
            assert holds(index, answer["T"]) and abs(answer["T"] - base) == nearest
