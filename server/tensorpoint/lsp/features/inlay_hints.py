"""`textDocument/inlayHint`: shapes in the text, behind the values that have them."""

from __future__ import annotations

from collections.abc import Iterator

from lsprotocol import types

from ...wire.shapes import ShapeHint, Span
from .. import words
from ..settings import Hints
from ..view import View


def inlay_hints(
    view: View,
    within: types.Range,
    formats: list[types.MarkupKind] | None,
    lazy_tooltips: bool = False,
) -> list[types.InlayHint]:
    """The hints of a range; with `lazy_tooltips`, those are made by `resolve`.

    The whole text is in the label: not all clients show tooltips.
    """
    first, last = within.start.line, within.end.line
    return [
        types.InlayHint(
            position=view.position(hint.span.end_line, hint.span.end_col),
            label=label,
            kind=types.InlayHintKind.Type,
            padding_left=not label.startswith(":"),
            tooltip=None if lazy_tooltips else tooltip(view, hint, formats),
            data={
                "uri": view.part.uri,
                "span": [hint.span.line - view.part.first, hint.span.col],
                "name": hint.name,
            },
        )
        for hint in _shown(view, view.settings.hints)
        if first <= hint.span.end_line - view.part.first - 1 <= last
        for label in [_label(view, hint)]
    ]


def tooltip(
    view: View, hint: ShapeHint, formats: list[types.MarkupKind] | None
) -> types.MarkupContent:
    """All that is known of a hint."""
    return words.markup(words.describe_hint(hint, view.table), formats)


def find(view: View, data: dict[str, object]) -> ShapeHint | None:
    """The hint that `data` was made for; None if the text has moved on."""
    for hint in view.hints:
        place = [hint.span.line - view.part.first, hint.span.col]
        if place == data.get("span") and hint.name == data.get("name"):
            return hint
    return None


def _shown(view: View, settings: Hints) -> Iterator[ShapeHint]:
    last: dict[tuple[str, str], str] = {}
    taken: set[tuple[int, int]] = set()
    for hint in view.hints:
        if not _wanted(hint, settings):
            continue
        place = (hint.span.end_line, hint.span.end_col)
        if place in taken:
            continue
        if hint.kind in ("target", "argument"):
            # `x = relu(x)`: a hint that says what the one above says is noise.
            name = (_function(hint), hint.name)
            unchanged = hint.kind == "target" and last.get(name) == hint.text
            last[name] = hint.text
            if unchanged and not settings.unchanged:
                continue
        taken.add(place)
        yield hint


def _function(hint: ShapeHint) -> str:
    """In which function the value is: `B.forward` of `Net.forward:12 > B.forward:4`."""
    if not hint.executions:
        return ""
    return hint.executions[0].call_path.rpartition(" > ")[2].partition(":")[0]


def _wanted(hint: ShapeHint, settings: Hints) -> bool:
    if hint.dtype == "int":
        # `B, T = x.shape` says it already.
        if not settings.integers or hint.text == hint.name:
            return False
        return hint.kind == "target"
    return {
        "target": settings.targets,
        "expression": settings.expressions,
        "argument": settings.arguments,
        "return": settings.returns,
    }.get(hint.kind, False)


def _label(view: View, hint: ShapeHint) -> str:
    text = hint.text
    if hint.count > 1 and len(hint.executions) > 1:
        text = f"{text} ×{hint.count}"
    if hint.kind == "return":
        return f"→ {text}"
    if hint.kind in ("target", "argument") and not _annotated(view, hint.span):
        return f": {text}"
    return text


def _annotated(view: View, span: Span) -> bool:
    rest = view.line(span.end_line)[span.end_col :].lstrip()
    return rest.startswith(":") and not rest.startswith(":=")
