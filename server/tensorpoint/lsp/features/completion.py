"""`textDocument/completion` inside input specifications: `# tensorpoint: x: f32[B, 3, H, W]`."""

from __future__ import annotations

import re

from lsprotocol import types

from ..view import View

TRIGGERS = (":", "[", ",", " ")

_COMMENT = re.compile(r"^\s*#\s*tensorpoint:(?P<spec>.*)$")
_BEGUN = re.compile(r"^\s*#\s*(?P<word>[a-z]*)$")
_DEF = re.compile(r"^\s*(?:async\s+)?def\s+(?P<name>\w+)\s*\((?P<arguments>[^)]*)", re.M)
_DTYPES = {
    "f32": "torch.float32",
    "f16": "torch.float16",
    "bf16": "torch.bfloat16",
    "f64": "torch.float64",
    "i64": "torch.int64",
    "i32": "torch.int32",
    "i8": "torch.int8",
    "u8": "torch.uint8",
    "bool": "torch.bool",
    "c64": "torch.complex64",
}
_DIMS = {
    "B": "batch",
    "T": "tokens, time",
    "C": "channels",
    "H": "height",
    "W": "width",
    "D": "features",
    "N": "number",
}


def completions(view: View, position: types.Position) -> list[types.CompletionItem]:
    """What can stand there; nothing outside of a specification."""
    line, col = view.place(position)
    before = view.line(line)[:col]
    match = _COMMENT.match(before)
    if match is None:
        begun = _BEGUN.match(before)
        if begun is None or not "tensorpoint".startswith(begun["word"]) or not begun["word"]:
            return []
        return [_item("tensorpoint: ", types.CompletionItemKind.Keyword, "shapes of inputs")]
    written = match["spec"]
    if written.count("[") > written.count("]"):
        return _dims(view)
    # What has been written since the last argument that is complete.
    if ":" in re.split(r"\],?", written)[-1]:
        return [
            _item(dtype, types.CompletionItemKind.TypeParameter, full)
            for dtype, full in _DTYPES.items()
        ]
    done = set(re.findall(r"(\w+)\s*:", written))
    return [
        _item(argument, types.CompletionItemKind.Variable, "argument", f"{argument}: ")
        for argument in _arguments(view, line)
        if argument not in done
    ]


def _dims(view: View) -> list[types.CompletionItem]:
    names = dict(_DIMS)
    for call in view.table.calls:
        for given in call.inputs:
            for dim in given.shape:
                if dim.isidentifier():
                    names[dim] = f"of {given.name} in {call.qualname}"
    return [_item(name, types.CompletionItemKind.Variable, why) for name, why in names.items()]


def _arguments(view: View, line: int) -> list[str]:
    """Arguments of the function below, or of those in the class below, or of the one around."""
    lines = view.part.lines
    here = line - view.part.first - 1
    below = _DEF.finditer("\n".join(lines[here + 1 :]))
    above = _DEF.finditer("\n".join(lines[:here]))
    for match in [*below, *reversed([*above])]:
        found = [
            word.partition(":")[0].partition("=")[0].strip(" *\n")
            for word in _split(match["arguments"])
        ]
        names = [name for name in found if name.isidentifier() and name not in ("self", "cls")]
        if names and match["name"] != "__init__":
            return names
    return []


def _split(arguments: str) -> list[str]:
    """At commas, but not at those in brackets: `x: Float[Tensor, "B T"], y`."""
    return re.split(r",(?![^\[]*\])", arguments)


def _item(
    label: str, kind: types.CompletionItemKind, detail: str, text: str | None = None
) -> types.CompletionItem:
    return types.CompletionItem(label, kind=kind, detail=detail, insert_text=text)
