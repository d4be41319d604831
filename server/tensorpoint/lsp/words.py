"""How shapes and sizes are put into words: for hovers, tooltips and code lenses. Markdown.

All of it reads well without rendering, too: some clients show plain text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from lsprotocol import types

from ..shapes.amounts import amount, memory
from ..wire.shapes import Origin, ShapeHint, ShapeTable, TracedCall, TracedInput
from .sources import Source

#: Executions that are listed; a block of a large model has hundreds.
_LISTED = 12

_ORIGINS: Mapping[Origin, str] = {
    "symbolic": "symbolic: FX tracing and runs at several sizes agree",
    "probed": "probed: fits runs at several sizes",
    "measured": "measured in the last run",
}
_DTYPE = re.compile(r"bool|(b?f|[iuc])\d\w*")
#: Where inputs come from, and whether that is a guess.
_SOURCES: Mapping[str, tuple[str, bool]] = {
    "spec": ("as specified", False),
    "jaxtyping": ("as annotated", False),
    "last run": ("as in the last run", False),
    "call": ("as in a call found in the code", True),
    "first use": ("guessed from its first use", True),
    "repair": ("guessed: a size that fits", True),
}


def sizes(table: Mapping[str, int]) -> str:
    """`B = 2, T = 128`."""
    return ", ".join(f"{name} = {size}" for name, size in table.items())


def graph_breaks(source: Source, found: ShapeTable | str) -> str:
    """What torch.compile says of a file, in a sentence; a text says why it says nothing."""
    if isinstance(found, str):
        return found or "the file is not traced."
    lines = sorted({one.span.line for one in found.diagnostics if one.code == "graph-break"})
    if lines and source.is_notebook:
        cells = [source.cell_of(line) for line in lines]
        places = ", ".join(f"line {line} of code cell {cell}" for cell, line in cells)
        return f"torch.compile breaks the graph in {places}."
    if lines:
        plural = "s" if len(lines) > 1 else ""
        return f"torch.compile breaks the graph in line{plural} {', '.join(map(str, lines))}."
    if found.untraced or not found.calls:
        return " ".join(found.untraced) or "the file has nothing that is traced."
    return "torch.compile finds none."


def shape(dtype: str, dims: Sequence[str]) -> str:
    """`f32[B, 3]`."""
    return f"{dtype}[{', '.join(dims)}]"


def spec(inputs: Sequence[TracedInput]) -> str:
    """Inputs as they are specified: `x: f32[B, 3], mask: bool[B]`."""
    return ", ".join(f"{given.name}: {value(given)}" for given in inputs)


def value(given: TracedInput) -> str:
    """One input as it is specified: a tensor, or a container or a literal as it is."""
    is_tensor = given.shape or _DTYPE.fullmatch(given.dtype)
    return shape(given.dtype, given.shape) if is_tensor else given.dtype


def guessed(given: TracedInput) -> bool:
    """Whether the user should have a look at this input."""
    return _SOURCES.get(given.origin, ("", True))[1]


def signature(call: TracedCall) -> str:
    """What goes in and what comes out, in one line."""
    return f"{spec(call.inputs) or 'no tensors'} → {call.output}"


def costs(call: TracedCall) -> list[str]:
    """How large a traced call is: `25.6 M parameters`, `8.2 GFLOPs at B = 1`."""
    found: list[str] = []
    if call.parameters:
        found.append(f"{amount(call.parameters)} parameters")
    if call.flops:
        at = f" at {sizes(call.sizes)}" if call.sizes else ""
        found.append(f"{amount(call.flops, 'FLOPs')}{at}")
    return found


def describe_call(call: TracedCall) -> str:
    """A traced class or function as a whole."""
    lines = [f"**{call.qualname}** `{signature(call)}`"]
    if call.constructor and call.constructor != call.qualname:
        lines.append(f"- built by `{call.constructor}`")
    lines += [f"- {text}" for text in costs(call)]
    for given in call.inputs:
        where = _SOURCES.get(given.origin, (given.origin, True))[0]
        lines.append(f"- `{given.name}: {value(given)}` {where}")
    if any(map(guessed, call.inputs)):
        lines.append("- a code action here writes the inputs down, to be corrected")
    lines += [f"- assumes `{assumption}`" for assumption in call.assumptions]
    return "\n".join(lines)


def describe_hint(hint: ShapeHint, table: ShapeTable) -> str:
    """All that is known of one value."""
    name = hint.name if len(hint.name) <= 60 else f"{hint.name[:57]}..."
    lines = [f"**{name}** `{hint.text}`", f"- {_ORIGINS[hint.origin]}"]
    if hint.count > 1 and len(hint.executions) <= 1:
        lines.append(f"- the same in {hint.count} executions")
    lines += [f"- `{constant}`" for constant in hint.constants]
    lines += [f"- {note}" for note in hint.notes]
    if hint.parameters:
        lines.append(f"- {amount(hint.parameters)} parameters")
    call = call_of(hint, table)
    at = f" at {sizes(call.sizes)}" if call is not None and call.sizes else ""
    if hint.flops:
        lines.append(f"- {amount(hint.flops, 'FLOPs')}{at}")
    if hint.bytes:
        lines.append(f"- {memory(hint.bytes)}{at}")
    if call is not None:
        lines += [f"- assumes `{assumption}`" for assumption in call.assumptions]
        guesses = [given.name for given in call.inputs if guessed(given)]
        if guesses:
            lines.append(f"- the shape of {' and '.join(guesses)} is a guess")
    if len(hint.executions) > 1:
        lines += ["", f"{hint.count} executions:", ""]
        for one in hint.executions[:_LISTED]:
            times = f" ×{one.count}" if one.count > 1 else ""
            lines.append(f"- `{shape(one.dtype, one.shape)}`{times} `{one.call_path}`")
        left = len(hint.executions) - _LISTED
        if left > 0:
            lines.append(f"- and {left} more")
    return "\n".join(lines)


def call_of(hint: ShapeHint, table: ShapeTable) -> TracedCall | None:
    """The traced call in which the value came to be."""
    if len(table.calls) == 1:
        return table.calls[0]
    for one in hint.executions:
        root = one.call_path.partition(":")[0]
        for call in table.calls:
            if root == call.qualname or root.startswith(f"{call.qualname}."):
                return call
    return None


def markup(text: str, formats: Sequence[types.MarkupKind] | None) -> types.MarkupContent:
    """Markdown for a client that renders it, the same without marks for others."""
    if formats is None or types.MarkupKind.Markdown in formats:
        return types.MarkupContent(types.MarkupKind.Markdown, text)
    return types.MarkupContent(types.MarkupKind.PlainText, re.sub(r"\*\*|`", "", text))
