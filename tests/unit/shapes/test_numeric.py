"""NaN that sizes alone make."""

from __future__ import annotations

from pathlib import Path

from tensorpoint.shapes.tracing.main import table_of
from tensorpoint.wire.shapes import ShapeRequest
from tests.unit.shapes.marks import marked

PROGRAM = Path(__file__).parents[2] / "programs" / "shapes" / "numeric.py"


def test_nan_that_sizes_make_is_where_the_comments_say() -> None:
    text = PROGRAM.read_text("utf-8")
    table = table_of(ShapeRequest(str(PROGRAM), text))
    expected = {at: said.split(" ", 2) for at, said in marked(text, "nan").items()}
    found = {each.span.line: each for each in table.diagnostics}
    assert found.keys() == expected.keys() and len(found) == 4, found
    for line, each in found.items():
        severity, code, message = expected[line]
        assert (each.severity, each.code) == (severity, code), each
        assert each.message.startswith(message), each.message
    assert len(table.calls) == 6 and not table.untraced
