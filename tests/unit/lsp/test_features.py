"""Features as functions of a table: what is shown, where, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lsprotocol import types

from tensorpoint.lsp.features.code_lens import code_lenses
from tensorpoint.lsp.features.diagnostics import diagnostics
from tensorpoint.lsp.features.hover import hover
from tensorpoint.lsp.features.inlay_hints import inlay_hints
from tensorpoint.lsp.features.inline_values import inline_values
from tensorpoint.lsp.sources import Part, Source
from tensorpoint.wire.shapes import Execution, Related, ShapeHint, ShapeTable
from tests.unit.lsp.documents import (
    NET,
    PATH,
    URI,
    clash,
    hint,
    net_table,
    position,
    span,
    view,
    whole,
)

MARKDOWN = [types.MarkupKind.Markdown]


def shown(**settings: Any) -> list[tuple[int, str]]:
    """Line (from 1) and label of each hint."""
    found = inlay_hints(view(**settings), whole(), MARKDOWN)
    return [(one.position.line + 1, str(one.label)) for one in found]


WIDE = "f32[B, 64, ceil(H/2), ceil(W/2)]"


def test_hints_stand_behind_arguments_and_targets_that_change() -> None:
    assert shown() == [(10, ": f32[B, 3, H, W]"), (11, f": {WIDE}")]


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        ({"unchanged": True}, [(10, ": f32[B, 3, H, W]"), (11, f": {WIDE}"), (12, f": {WIDE}")]),
        ({"arguments": False}, [(11, f": {WIDE}")]),
        ({"targets": False}, [(10, ": f32[B, 3, H, W]")]),
        (
            {"returns": True, "targets": False, "arguments": False},
            [(14, "→ f32[B, 64*ceil(H/2)*ceil(W/2)]")],
        ),
        (
            {"expressions": True, "targets": False, "arguments": False},
            [(11, WIDE), (12, WIDE)],
        ),
    ],
)
def test_settings_choose_hints(hints: dict[str, bool], expected: list[tuple[int, str]]) -> None:
    assert shown(hints=hints) == expected


def test_a_shape_that_a_name_has_in_another_function_is_shown_here() -> None:
    def seen(line_with: str, function: str) -> ShapeHint:
        way = (Execution("f32", ("B",), f"Net.forward:9 > {function}:4"),)
        return hint(span(NET, line_with, "x"), "x", "f32[B]", executions=way)

    first, second = "x = self.conv(x)", "x = torch.relu(x)"
    for function, lines in (("Net.encode", [10]), ("Net.decode", [10, 11])):
        hints = (seen(first, "Net.encode"), seen(second, function))
        found = inlay_hints(view(ShapeTable(PATH, hints=hints)), whole(), MARKDOWN)
        assert [one.position.line for one in found] == lines


def test_an_integer_is_shown_unless_its_name_says_it() -> None:
    text = NET.replace("B = x.size(0)", "count = x.size(0)")
    table = net_table(text.replace("count", "B"))
    at = span(text, "count = ", "count")
    table = ShapeTable(PATH, hints=(hint(at, "count", "B"),))
    [one] = inlay_hints(view(table, text), whole(), MARKDOWN)
    assert (one.label, one.position) == (": B", types.Position(12, 13))
    assert not inlay_hints(view(table, text, hints={"integers": False}), whole(), MARKDOWN)


def test_only_the_range_is_answered_for() -> None:
    lines = types.Range(types.Position(10, 0), types.Position(10, 99))
    [one] = inlay_hints(view(), lines, MARKDOWN)
    assert one.position.line == 10


def test_a_hint_of_several_executions_says_how_many() -> None:
    at = span(NET, "x = self.conv(x)", "x")
    several = hint(
        at,
        "x",
        "f32[B, 64|128, H]",
        count=7,
        executions=(
            Execution("f32", ("B", "64", "H"), "Net.forward:10 > Block.forward:4", 3),
            Execution("f32", ("B", "128", "H"), "Net.forward:11 > Block.forward:4", 4),
        ),
        constants=("64 = width",),
    )
    [one] = inlay_hints(view(ShapeTable(PATH, hints=(several,))), whole(), MARKDOWN)
    assert one.label == ": f32[B, 64|128, H] ×7"
    assert isinstance(one.tooltip, types.MarkupContent)
    assert "- `f32[B, 128, H]` ×4 `Net.forward:11 > Block.forward:4`" in one.tooltip.value
    assert "- `64 = width`" in one.tooltip.value


def test_an_annotated_name_has_no_second_colon() -> None:
    text = NET.replace("def forward(self, x)", "def forward(self, x: torch.Tensor)")
    table = ShapeTable(
        PATH, hints=(hint(span(text, "def forward", "x"), "x", "f32[B]", "argument"),)
    )
    [one] = inlay_hints(view(table, text), whole(), MARKDOWN)
    assert (one.label, one.padding_left) == ("f32[B]", True)


@pytest.mark.parametrize(
    ("encoding", "character"),
    [
        (types.PositionEncodingKind.Utf8, 8 + 14),
        (types.PositionEncodingKind.Utf16, 8 + 12),
        (types.PositionEncodingKind.Utf32, 8 + 11),
    ],
)
def test_columns_are_those_of_the_client(
    encoding: types.PositionEncodingKind, character: int
) -> None:
    text = NET.replace("x = torch.relu(x)", 's = "🔥"; ab = torch.relu(x)')
    table = ShapeTable(PATH, hints=(hint(span(text, "ab =", "ab"), "ab", "f32[B]"),))
    [one] = inlay_hints(view(table, text, encoding), whole(), MARKDOWN)
    assert one.position.character == character
    # And back: the hover is found where the client says.
    found = hover(view(table, text, encoding), one.position, MARKDOWN)
    assert found is not None and found.range is not None
    assert found.range.end == one.position


def test_hover_shows_the_innermost_value() -> None:
    found = hover(view(), position(span(NET, "x = self.conv(x)", "self.conv(x)")), MARKDOWN)
    assert found is not None and isinstance(found.contents, types.MarkupContent)
    text = found.contents.value
    assert text.startswith(f"**self.conv(x)** `{WIDE}`")
    for part in (
        "probed: fits runs at several sizes",
        "9.47 k parameters",
        "236 MFLOPs at B = 2, H = 224, W = 224",
        "assumes `H >= 1`",
        "the shape of x is a guess",
    ):
        assert part in text, part


def test_hover_over_a_class_says_where_its_inputs_come_from() -> None:
    found = hover(view(), position(span(NET, "class Net", "Net")), [types.MarkupKind.PlainText])
    assert found is not None and isinstance(found.contents, types.MarkupContent)
    assert found.contents.kind is types.MarkupKind.PlainText
    text = found.contents.value
    assert "`" not in text and "**" not in text
    assert "Net x: f32[B, 3, H, W] → f32[B, 64*ceil(H/2)*ceil(W/2)]" in text
    assert "x: f32[B, 3, H, W] guessed from its first use" in text


def test_there_is_no_hover_where_nothing_is_known() -> None:
    assert hover(view(), position(span(NET, "import torch")), MARKDOWN) is None
    assert hover(view(), types.Position(500, 3), MARKDOWN) is None


def test_a_diagnostic_names_its_counter_example() -> None:
    table = net_table(
        diagnostics=(
            clash(related=(Related(PATH, span(NET, "self.conv = "), "fixes 64"),)),
            replace(clash(), message="fails when T > 512 (T = 513)", witness={"T": 513}),
        )
    )
    first, second = diagnostics(view(table), with_related=True)
    assert first.message == "needs H % 2 == 0 (H = 225)"
    assert (first.severity, first.code) == (types.DiagnosticSeverity.Error, "shape-mismatch")
    assert first.source == "tensorpoint"
    assert [one.message for one in first.related_information or ()] == [
        "counter-example: H = 225",
        "fixes 64",
    ]
    assert first.related_information is not None
    assert first.related_information[1].location.range.start.line == 7
    assert second.message == "fails when T > 512 (T = 513)"
    [plain, _] = diagnostics(view(table), with_related=False)
    assert plain.related_information is None


def test_a_related_place_may_be_in_another_file() -> None:
    at = span(NET, "self.conv = ")
    table = net_table(diagnostics=(clash(related=(Related("/project/a b.py", at, "here"),)),))
    [found] = diagnostics(view(table), with_related=True)
    assert found.related_information is not None
    assert found.related_information[1].location.uri == "file:///project/a%20b.py"


@pytest.mark.parametrize(("wanted", "codes"), [("errors", ["shape-mismatch"]), ("off", [])])
def test_diagnostics_can_be_fewer(wanted: str, codes: list[str]) -> None:
    dead = replace(clash(), severity="hint", code="dead-branch")
    table = net_table(diagnostics=(clash(), dead), untraced=("Net: no.",))
    found = diagnostics(view(table, diagnostics=wanted), with_related=False)
    assert [one.code for one in found] == codes
    everything = diagnostics(view(table), with_related=False)
    assert [one.code for one in everything] == ["shape-mismatch", "dead-branch", "untraced"]
    assert everything[1].tags == [types.DiagnosticTag.Unnecessary]


def test_what_has_no_shapes_is_explained_once_and_faintly() -> None:
    table = ShapeTable(PATH, untraced=("Net needs a config.", "Other needs a config."))
    [found] = diagnostics(view(table), with_related=True)
    assert found.severity is types.DiagnosticSeverity.Hint
    assert found.message == "No shapes: Net needs a config. Other needs a config."
    assert found.range == types.Range(types.Position(4, 6), types.Position(4, 9))
    [found] = diagnostics(view(ShapeTable(PATH), problem="it ended."), with_related=True)
    assert (found.message, found.range.start.line) == ("No shapes: it ended.", 0)


def test_a_notebook_has_the_explanation_in_one_cell() -> None:
    first = Part(f"{URI}#a", 1, 0, ("import torch", ""))
    second = Part(f"{URI}#b", 1, 2, ("class Net:", "    pass"))
    source = Source(URI, PATH, (first, second))
    whole_of = view(ShapeTable(PATH, untraced=("Net needs a config.",)))
    cells = [replace(whole_of, source=source, part=part) for part in (first, second)]
    found = [[one.range.start.line for one in diagnostics(cell, True)] for cell in cells]
    assert found == [[], [0]]
    cells = [replace(cell, table=ShapeTable(PATH), problem="it ended.") for cell in cells]
    found = [[one.range.start.line for one in diagnostics(cell, True)] for cell in cells]
    assert found == [[0], []]


def test_lenses_stand_above_class_and_forward() -> None:
    first, second = code_lenses(view())
    assert first.command is not None and second.command is not None
    signature = "x: f32[B, 3, H, W] → f32[B, 64*ceil(H/2)*ceil(W/2)]"
    assert first.command.title == (
        f"{signature} · 9.47 k parameters · 236 MFLOPs at B = 2, H = 224, W = 224 · inputs guessed"
    )
    assert (first.range.start.line, second.range.start.line) == (4, 9)
    assert second.command.title == signature
    assert code_lenses(view(codeLens=False)) == []


def test_inline_values_are_looked_up_up_to_the_line_that_has_stopped() -> None:
    stopped = types.Range(types.Position(11, 0), types.Position(11, 0))
    context = types.InlineValueContext(frame_id=1, stopped_location=stopped)
    found = inline_values(view(), whole(), context)
    lookups = [one for one in found if isinstance(one, types.InlineValueVariableLookup)]
    assert len(lookups) == len(found)
    assert [(one.range.start.line, one.variable_name) for one in lookups] == [
        (9, "x"),
        (10, "x"),
    ]
    assert inline_values(view(inlineValues=False), whole(), context) == []


def test_hints_beyond_the_text_are_left_out() -> None:
    """A table that does not fit its text must not break a client."""
    far = hint(span(NET, "x = self.conv(x)", "x"), "x", "f32[B]")
    table = ShapeTable(PATH, hints=(far,))
    assert inlay_hints(view(table, "import torch\n"), whole(), MARKDOWN) == []
