"""Documents with hand-written tables, as the features get them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from lsprotocol import types
from pygls.workspace import PositionCodec

from tensorpoint.lsp.settings import Settings, read
from tensorpoint.lsp.sources import Part, Source, lines_of
from tensorpoint.lsp.view import View
from tensorpoint.wire.shapes import (
    Execution,
    ShapeDiagnostic,
    ShapeHint,
    ShapeTable,
    Span,
    TracedCall,
    TracedInput,
)

URI = "file:///project/net.py"
PATH = "/project/net.py"

NET = textwrap.dedent(
    """\
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 64, 7, stride=2, padding=3)

        def forward(self, x):
            x = self.conv(x)
            x = torch.relu(x)
            B = x.size(0)
            return x.reshape(B, -1)
    """
)


def span(text: str, line_with: str, piece: str | None = None, occurrence: int = 0) -> Span:
    """The place of `piece` in the first line that contains `line_with`."""
    piece = line_with if piece is None else piece
    for number, line in enumerate(lines_of(text), 1):
        if line_with in line:
            col = -1
            for _ in range(occurrence + 1):
                col = line.index(piece, col + 1)
            return Span(number, col, number, col + len(piece))
    raise AssertionError(f"no line has {line_with!r}")


def hint(at: Span, name: str, text: str, kind: str = "target", **fields: Any) -> ShapeHint:
    """A hint; dtype and shape are read from the text."""
    dtype, bracket, dims = text.partition("[")
    shape = tuple(dims.rstrip("]").split(", ")) if bracket else (text,)
    given: dict[str, Any] = {"origin": "probed", "count": 1, **fields}
    return ShapeHint(at, name, kind, text, dtype if bracket else "int", shape, **given)


def net_table(text: str = NET, **fields: Any) -> ShapeTable:
    """What a tracer says of NET."""
    wide = "f32[B, 64, ceil(H/2), ceil(W/2)]"
    return ShapeTable(
        PATH,
        calls=(
            TracedCall(
                "Net",
                "Net()",
                span(text, "class Net", "Net"),
                span(text, "def forward", "forward"),
                (TracedInput("x", "f32", ("B", "3", "H", "W"), "first use"),),
                "f32[B, 64*ceil(H/2)*ceil(W/2)]",
                9472,
                236_000_000,
                ("H >= 1",),
                {"B": 2, "H": 224, "W": 224},
            ),
        ),
        hints=(
            hint(span(text, "def forward", "x"), "x", "f32[B, 3, H, W]", "argument"),
            hint(span(text, "x = self.conv(x)", "x"), "x", wide, bytes=3_211_264),
            hint(
                span(text, "x = self.conv(x)", "self.conv(x)"),
                "self.conv(x)",
                wide,
                "expression",
                parameters=9472,
                flops=236_000_000,
                executions=(Execution("f32", ("B", "64"), "Net.forward:11"),),
            ),
            hint(span(text, "x = torch.relu(x)", "x"), "x", wide),
            hint(span(text, "x = torch.relu(x)", "torch.relu(x)"), "relu", wide, "expression"),
            hint(span(text, "B = x.size(0)", "B"), "B", "B"),
            hint(
                span(text, "return x.res", "x.reshape(B, -1)"),
                "x.reshape(B, -1)",
                "f32[B, 64*ceil(H/2)*ceil(W/2)]",
                "return",
            ),
        ),
        **fields,
    )


def clash(text: str = NET, **fields: Any) -> ShapeDiagnostic:
    """A fault in NET."""
    given: dict[str, Any] = {"witness": {"H": 225}, **fields}
    return ShapeDiagnostic(
        span(text, "return x.res", "x.reshape(B, -1)"),
        "error",
        "shape-mismatch",
        "needs H % 2 == 0",
        **given,
    )


def view(
    table: ShapeTable | None = None,
    text: str = NET,
    encoding: types.PositionEncodingKind = types.PositionEncodingKind.Utf16,
    problem: str = "",
    **shapes: Any,
) -> View:
    """The document that a client has open; `shapes` are settings, as JSON."""
    settings, errors = read({"shapes": shapes}, Settings())
    assert not errors, errors
    part = Part(URI, 3, 0, lines_of(text))
    source = Source(URI, PATH, (part,))
    return View(
        source,
        part,
        net_table(text) if table is None else table,
        settings.shapes,
        PositionCodec(encoding),
        problem,
    )


def whole(text: str = NET) -> types.Range:
    """All of a document."""
    return types.Range(types.Position(0, 0), types.Position(len(lines_of(text)), 0))


def position(at: Span) -> types.Position:
    """The first character of a span in a document of ASCII."""
    return types.Position(at.line - 1, at.col)


def apply(text: str, edits: Sequence[types.TextEdit]) -> str:
    """A text after a client has applied edits, which all count in the text before."""
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    pieces = sorted(
        (
            (
                starts[edit.range.start.line] + edit.range.start.character,
                starts[edit.range.end.line] + edit.range.end.character,
                edit.new_text,
            )
            for edit in edits
        ),
        key=lambda piece: piece[:2],
        reverse=True,
    )
    for start, end, new in pieces:
        text = text[:start] + new + text[end:]
    return text
