"""`textDocument/inlineValue`: which tensors a debugger that has stopped should show in the text.

What they are then is the debugger's to say; which names hold tensors is known here.
"""

from __future__ import annotations

import ast

from lsprotocol import types

from ..view import View


def inline_values(
    view: View, within: types.Range, context: types.InlineValueContext
) -> list[types.InlineValue]:
    """Look-ups of the names with a shape, in the function that has stopped, up to its line."""
    if not view.settings.inline_values:
        return []
    stopped = context.stopped_location.end.line + view.part.first + 1
    first = _begin(view, stopped)
    top, bottom = within.start.line + view.part.first + 1, within.end.line + view.part.first + 1
    return [
        types.InlineValueVariableLookup(
            range=view.range(hint.span), case_sensitive_lookup=True, variable_name=hint.name
        )
        for hint in view.hints
        if hint.kind in ("target", "argument")
        and hint.name.isidentifier()
        and max(first, top) <= hint.span.line <= min(stopped, bottom)
        # The line that has stopped has not run.
        and (hint.span.line < stopped or hint.kind == "argument")
    ]


def _begin(view: View, line: int) -> int:
    """The first line of the function around a line."""
    if view.tree is None:
        return line
    found = [
        node.lineno
        for node in ast.walk(view.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(found, default=1)
