"""`textDocument/hover`: all that is known of the value, the layer or the class under the cursor."""

from __future__ import annotations

from lsprotocol import types

from ...wire.shapes import ShapeHint
from .. import words
from ..view import View, contains, size


def hover(
    view: View, position: types.Position, formats: list[types.MarkupKind] | None, measured: str = ""
) -> types.Hover | None:
    """The innermost value there, the traced call whose name it is; `measured` is of its line."""
    line, col = view.place(position)
    texts: list[str] = []
    found = hint_at(view, position)
    span = None
    if found is not None:
        span = found.span
        texts.append(words.describe_hint(found, view.table))
    for call in view.calls:
        for place in (call.span, call.forward):
            if place is not None and contains(place, line, col):
                span = place
                texts.append(words.describe_call(call))
    if measured and (texts or _code_at(view, line, col)):
        texts.append(measured)
    if not texts:
        return None
    text = "\n\n---\n\n".join(texts)
    return types.Hover(words.markup(text, formats), view.range(span) if span else None)


def hint_at(view: View, position: types.Position) -> ShapeHint | None:
    """The hint of the smallest value there."""
    line, col = view.place(position)
    around = [hint for hint in view.hints if contains(hint.span, line, col)]
    # Between neighbours, the one that begins there.
    return min(
        around,
        key=lambda hint: ((hint.span.end_line, hint.span.end_col) == (line, col), size(hint.span)),
        default=None,
    )


def _code_at(view: View, line: int, col: int) -> bool:
    text = view.line(line)
    return col < len(text) and not text[col].isspace() and "#" not in text[:col]
