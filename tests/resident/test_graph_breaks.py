"""`tensorpoint shapes --breaks`: where torch.compile would break the graph."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.resident.test_shapes_command import shapes

PROGRAM = Path(__file__).parents[1] / "programs" / "shapes" / "breaking.py"


@pytest.mark.timeout(240)
def test_breaks_are_named_on_request_at_their_lines() -> None:
    asked = shapes(str(PROGRAM), "--json", "--breaks")
    assert asked.returncode == 0, asked.stderr
    table = json.loads(asked.stdout)
    lines = PROGRAM.read_text("utf-8").split("\n")
    expected = {number + 1 for number, line in enumerate(lines, 1) if "# break" in line}
    found = {each["line"]: each for each in table["diagnostics"]}
    assert found.keys() == expected and not table["untraced"], table
    for each in found.values():
        assert (each["severity"], each["code"]) == ("hint", "graph-break")
        assert each["message"].startswith("torch.compile breaks the graph here: ")
    assert "branching" in found[min(found)]["message"].lower()
