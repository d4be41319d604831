"""What the last debug run of a file measured, as inputs of a trace and as hints of its own.

The facts have what each line's layers gave. A line that assigns or returns the value of one call
gets that as its shape, in numbers, where a trace has found none.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..resident import runs
from ..wire.dtypes import short_dtype
from ..wire.facts import Layer
from ..wire.shapes import Execution, KnownCall, ShapeHint, ShapeTable, Span


def calls_in_last_run(path: str) -> tuple[KnownCall, ...]:
    """The inputs of the modules that the last run of a file has called, by their classes."""
    found = runs.measured(path)
    if found is None:
        return ()
    return tuple(
        KnownCall(root.module_type, "last run", root.inputs) for root in found.roots if root.inputs
    )


def measured_hints(path: str, text: str) -> tuple[ShapeHint, ...]:
    """Hints for the lines of a file as it is on the disk; none if it has changed since the run."""
    found = runs.measured(path)
    if found is None or found.edited:
        return ()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    lines = text.split("\n")
    return tuple(
        hint
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Return))
        for hint in _hints(node, found.lines, lines)
    )


def with_measured(table: ShapeTable, hints: Sequence[ShapeHint]) -> ShapeTable:
    """The table with those hints whose places have none."""
    taken = {(hint.span.line, hint.span.col, hint.kind) for hint in table.hints}
    more = [h for h in hints if (h.span.line, h.span.col, h.kind) not in taken]
    if not more:
        return table
    return replace(table, hints=tuple(sorted([*table.hints, *more], key=_place)))


def _place(hint: ShapeHint) -> tuple[int, int]:
    return hint.span.line, hint.span.col


def _hints(
    node: ast.Assign | ast.AnnAssign | ast.Return,
    measured: dict[int, tuple[Layer, ...]],
    lines: Sequence[str],
) -> Iterator[ShapeHint]:
    call = node.value
    # Of `relu(self.conv(x))` the layer's output is known, not the value of the line.
    if not isinstance(call, ast.Call) or any(
        isinstance(each, ast.Call) for each in ast.walk(call) if each is not call
    ):
        return
    layers = _outermost(measured.get(call.lineno, ()))
    texts = list(dict.fromkeys(_text(layer) for layer in layers if layer.outputs))
    if not texts:
        return
    if isinstance(node, ast.Return):
        place, kind, name = call, "return", ast.unparse(call)
    else:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        place, kind = targets[0], "target"
        if not isinstance(place, (ast.Name, ast.Attribute)):
            return
        name = ast.unparse(place)
    dtype, shape = _single(layers)
    yield ShapeHint(
        _span(place, lines),
        name,
        kind,
        " | ".join(texts),
        dtype,
        shape,
        "measured",
        sum(layer.calls for layer in layers),
        tuple(
            Execution(*_single([layer]), call_path=layer.module or layer.module_type)
            for layer in layers
        ),
    )


def _outermost(layers: Sequence[Layer]) -> list[Layer]:
    """Without those that another one of the line has called: a container's children."""
    paths = {layer.module for layer in layers}

    def inside(path: str) -> bool:
        others = (f"{other}." if other else "" for other in paths if other != path)
        return any(path.startswith(other) for other in others)

    return [layer for layer in layers if not inside(layer.module)]


def _text(layer: Layer) -> str:
    texts = [
        f"{short_dtype(output.dtype)}[{', '.join(map(str, output.shape))}]"
        for output in layer.outputs
    ]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def _single(layers: Sequence[Layer]) -> tuple[str, tuple[str, ...]]:
    """Dtype and sizes, where each gave one tensor, all of one dtype and rank."""
    outputs = [layer.outputs[0] for layer in layers if len(layer.outputs) == 1]
    if len(outputs) != len(layers) or len({(o.dtype, len(o.shape)) for o in outputs}) != 1:
        return "", ()
    columns = zip(*(output.shape for output in outputs))
    shape = tuple("|".join(dict.fromkeys(map(str, sizes))) for sizes in columns)
    return short_dtype(outputs[0].dtype), shape


def _span(node: ast.expr, lines: Sequence[str]) -> Span:
    """In characters; `ast` counts bytes."""

    def column(line: int, offset: int) -> int:
        return len(lines[line - 1].encode()[:offset].decode(errors="ignore"))

    end = node.end_lineno or node.lineno
    return Span(
        node.lineno,
        column(node.lineno, node.col_offset),
        end,
        column(end, node.end_col_offset or 0),
    )
