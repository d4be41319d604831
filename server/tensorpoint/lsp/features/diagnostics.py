"""Diagnostics, pushed or pulled: faults that a run has confirmed, and why there are no shapes."""

from __future__ import annotations

import re

from lsprotocol import types
from pygls.uris import from_fs_path

from ...wire.shapes import Related, ShapeDiagnostic, Span
from .. import words
from ..view import View

SOURCE = "tensorpoint"
#: The code of the one explanation of a file without shapes.
UNTRACED = "untraced"

_SEVERITIES = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "information": types.DiagnosticSeverity.Information,
    "hint": types.DiagnosticSeverity.Hint,
}


def diagnostics(view: View, with_related: bool) -> list[types.Diagnostic]:
    """What is to be said of a document; related places for clients that show them."""
    wanted = view.settings.diagnostics
    if wanted == "off":
        return []
    found = [
        _diagnostic(view, one, with_related)
        for one in view.table.diagnostics
        if view.holds(one.span) and (wanted == "all" or one.severity == "error")
    ]
    if wanted == "all":
        found += _untraced(view)
    return found


def _diagnostic(view: View, found: ShapeDiagnostic, with_related: bool) -> types.Diagnostic:
    message = found.message
    # One size of the counter-example says which it is; the others are beside it.
    if found.witness and not any(_names(message, *one) for one in found.witness.items()):
        message = f"{message} ({words.sizes(found.witness)})"
    related: list[types.DiagnosticRelatedInformation] = []
    if with_related:
        if found.witness:
            related.append(
                types.DiagnosticRelatedInformation(
                    types.Location(view.part.uri, view.range(found.span)),
                    f"counter-example: {words.sizes(found.witness)}",
                )
            )
        related += [_related(view, one) for one in found.related]
    return types.Diagnostic(
        range=view.range(found.span),
        severity=_SEVERITIES[found.severity],
        code=found.code,
        source=SOURCE,
        message=message,
        tags=[types.DiagnosticTag.Unnecessary] if found.code == "dead-branch" else None,
        related_information=related or None,
        data={"witness": found.witness} if found.witness else None,
    )


def _names(message: str, name: str, size: int) -> bool:
    return re.search(rf"\b{re.escape(name)} ?= ?{size}\b", message) is not None


def _related(view: View, related: Related) -> types.DiagnosticRelatedInformation:
    if related.path == view.source.path and view.holds(related.span):
        location = types.Location(view.part.uri, view.range(related.span))
    else:
        # Of another file the text is not at hand: columns of ASCII are right in any units.
        span = related.span
        location = types.Location(
            from_fs_path(related.path) or related.path,
            types.Range(
                types.Position(max(0, span.line - 1), span.col),
                types.Position(max(0, span.end_line - 1), span.end_col),
            ),
        )
    return types.DiagnosticRelatedInformation(location, related.message)


def _untraced(view: View) -> list[types.Diagnostic]:
    """One explanation, at the first thing that it is about, as faint as the editor can."""
    sentences = [*view.table.untraced, *([view.problem] if view.problem else [])]
    if not sentences:
        return []
    text = " ".join(sentences)
    named = set(re.findall(r"[A-Za-z_]\w*", text))
    lines = view.source.lines
    place = Span(1, 0, 1, len(lines[0]))
    for number, line in enumerate(lines, 1):
        match = re.match(r"\s*(?:class|(?:async\s+)?def)\s+(\w+)", line)
        if match and match[1] in named:
            place = Span(number, match.start(1), number, match.end(1))
            break
    if not view.holds(place):  # another cell of the notebook has it
        return []
    return [
        types.Diagnostic(
            range=view.range(place),
            severity=types.DiagnosticSeverity.Hint,
            code=UNTRACED,
            source=SOURCE,
            message=f"No shapes: {text}",
        )
    ]
