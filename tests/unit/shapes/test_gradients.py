"""Where parameters lose their gradient, and where they only seem to."""

from __future__ import annotations

from pathlib import Path

from tensorpoint.shapes.tracing.main import table_of
from tensorpoint.wire.shapes import ShapeRequest
from tests.unit.shapes.marks import marked

PROGRAM = Path(__file__).parents[2] / "programs" / "shapes" / "gradients.py"


def test_cuts_are_where_the_comments_say_with_the_parameters_that_they_cost() -> None:
    text = PROGRAM.read_text("utf-8")
    table = table_of(ShapeRequest(str(PROGRAM), text))
    expected = marked(text, "cut")
    found = {each.span.line: each for each in table.diagnostics}
    assert found.keys() == expected.keys() and len(found) == 4, found
    for line, each in found.items():
        assert (each.severity, each.code) == ("hint", "gradient-cut")
        assert each.message.startswith(expected[line]), each.message
    assert len(table.calls) == 6
