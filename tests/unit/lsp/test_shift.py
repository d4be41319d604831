"""A table stays in its place while the text around it is edited."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tensorpoint.lsp.shift import moved, shift
from tensorpoint.lsp.sources import lines_of
from tensorpoint.wire.shapes import Span
from tests.unit.lsp.documents import NET, clash, net_table

LINES = st.lists(st.sampled_from(["a", "b", "c", "", "  d"]), max_size=12)


@given(LINES, LINES)
def test_lines_that_have_moved_are_the_same_and_in_order(
    before: list[str], after: list[str]
) -> None:
    lines = moved(before, after)
    pairs = sorted(lines.items())
    assert all(before[a - 1] == after[b - 1] for a, b in pairs)
    assert all(x[1] < y[1] for x, y in zip(pairs, pairs[1:], strict=False))


@given(LINES, LINES, LINES)
def test_what_is_around_an_edit_stays(head: list[str], new: list[str], tail: list[str]) -> None:
    lines = moved([*head, *tail], [*head, *new, *tail])
    assert len(lines) == len(head) + len(tail)


def test_hints_follow_their_lines_and_edited_ones_are_gone() -> None:
    after = NET.replace("import torch\n", "import math\nimport torch\n", 1)
    after = after.replace("x = torch.relu(x)", "x = torch.sigmoid(x)")
    table = net_table(diagnostics=(clash(),))
    found = shift(table, moved(lines_of(NET), lines_of(after)))
    assert {(one.span.line, one.name) for one in found.hints} == {
        (one.span.line + 1, one.name) for one in table.hints if one.span.line != 12
    }
    assert found.diagnostics[0].span.line == table.diagnostics[0].span.line + 1
    assert found.calls[0].span.line == table.calls[0].span.line + 1
    assert found.calls[0].forward is not None


def test_a_span_over_several_lines_goes_when_one_of_them_does() -> None:
    table = net_table()
    wide = table.hints[0]
    wide = replace(wide, span=Span(wide.span.line, 0, wide.span.line + 2, 5))
    table = replace(table, hints=(wide,))
    inserted = NET.replace("        x = torch.relu(x)\n", "\n        x = torch.relu(x)\n")
    assert shift(table, moved(lines_of(NET), lines_of(inserted))).hints == ()
    assert shift(table, moved(lines_of(NET), lines_of("\n" + NET))).hints[0].span.end_line == 13
