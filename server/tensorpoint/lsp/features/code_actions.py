"""`textDocument/codeAction`: writes what was found out into the source."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from lsprotocol import types

from ...wire.shapes import ShapeHint, TracedCall
from .. import words
from ..view import View
from . import annotations

KIND = types.CodeActionKind.RefactorRewrite


def code_actions(
    view: View, within: types.Range, only: Sequence[str] | None, versioned: bool
) -> list[types.CodeAction]:
    """What can be written at a range; only kinds that the client asks for."""
    if only and not any(map(_is_ours, only)):
        return []
    actions: list[types.CodeAction] = []
    for call in view.calls:
        if not _touches(view, call, within):
            continue
        if edit := _specify(view, call):
            guess = any(map(words.guessed, call.inputs))
            title = f"Specify the inputs: {words.spec(call.inputs)}"
            actions.append(_action(view, title, [edit], versioned, preferred=guess))
        if edits := annotations.edits(view, call):
            title = f"Annotate {call.qualname} with jaxtyping"
            actions.append(_action(view, title, edits, versioned))
        if edits := _comments(view, call):
            title = f"Write the shapes in {call.qualname} as comments"
            actions.append(_action(view, title, edits, versioned))
    for hint in view.hints:
        line = hint.span.end_line - view.part.first - 1
        if hint.kind == "target" and within.start.line <= line <= within.end.line:
            if edit := _comment(view, [hint]):
                title = f"Write the shape as a comment: {hint.text}"
                actions.append(_action(view, title, [edit], versioned))
                break
    return actions


def _is_ours(kind: str) -> bool:
    """Whether our actions are of this kind, which may be the name of several."""
    name = kind.value if isinstance(kind, types.CodeActionKind) else kind
    return name in ("", KIND.value) or KIND.value.startswith(f"{name}.")


def _touches(view: View, call: TracedCall, within: types.Range) -> bool:
    lines = {view.range(call.span).start.line}
    if call.forward is not None and view.holds(call.forward):
        lines.add(view.range(call.forward).start.line)
    return any(within.start.line <= line <= within.end.line for line in lines)


def _specify(view: View, call: TracedCall) -> types.TextEdit | None:
    """The inputs as a comment above the function, which goes before what is guessed."""
    place = call.forward or call.span
    if not call.inputs or not view.holds(place):
        return None
    if all(given.origin == "spec" for given in call.inputs):
        return None
    line = _first_line(view, place.line)
    text = view.line(line)
    indent = text[: len(text) - len(text.lstrip())]
    return annotations.insertion(
        view, line, 0, f"{indent}# tensorpoint: {words.spec(call.inputs)}\n"
    )


def _first_line(view: View, line: int) -> int:
    """The line of the first decorator of the function or class in a line."""
    for node in ast.walk(view.tree) if view.tree is not None else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.lineno == line and node.decorator_list:
                return node.decorator_list[0].lineno
    return line


def _comments(view: View, call: TracedCall) -> list[types.TextEdit]:
    """A comment behind each assignment in the function."""
    if call.forward is None:
        return []
    function = annotations.function_at(view, call.forward.line)
    if function is None:
        return []
    by_line: dict[int, list[ShapeHint]] = {}
    for hint in view.hints:
        inside = function.lineno <= hint.span.line <= (function.end_lineno or 0)
        if hint.kind == "target" and hint.dtype != "int" and inside:
            by_line.setdefault(hint.span.end_line, []).append(hint)
    edits = [_comment(view, hints) for hints in by_line.values()]
    return [edit for edit in edits if edit is not None]


def _comment(view: View, hints: list[ShapeHint]) -> types.TextEdit | None:
    """A comment with the shapes behind a line that has none."""
    line = view.line(hints[0].span.end_line)
    if "#" in line or line.endswith("\\") or '"""' in line or "'''" in line:
        return None
    if len(hints) == 1:
        text = hints[0].text
    else:
        text = ", ".join(f"{hint.name}: {hint.text}" for hint in hints)
    return annotations.insertion(view, hints[0].span.end_line, len(line.rstrip()), f"  # {text}")


def _action(
    view: View,
    title: str,
    edits: Sequence[types.TextEdit],
    versioned: bool,
    preferred: bool = False,
) -> types.CodeAction:
    if versioned:
        document = types.OptionalVersionedTextDocumentIdentifier(
            view.part.uri, version=view.part.version
        )
        edit = types.WorkspaceEdit(document_changes=[types.TextDocumentEdit(document, [*edits])])
    else:
        edit = types.WorkspaceEdit(changes={view.part.uri: [*edits]})
    return types.CodeAction(title, kind=KIND, edit=edit, is_preferred=preferred or None)
