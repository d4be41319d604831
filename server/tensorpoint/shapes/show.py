"""A table as text, the annotated source, and as JSON, for `tensorpoint shapes`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tokenize
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..wire.shapes import ShapeDiagnostic, ShapeHint, ShapeRequest, ShapeTable, TracedCall
from .amounts import amount
from .branches import PRELUDE
from .calling import environment_of, trace
from .measured import calls_in_last_run, measured_hints, with_measured
from .notebooks import BadNotebook, Notebook
from .project import BadProject, calls_in_project

#: What JSON has beside the place.
_HINT = ("name", "kind", "text", "dtype", "shape", "origin", "count", "notes")
_DIAGNOSTIC = ("severity", "code", "message", "witness")
_COLORS = {"error": "red", "warning": "yellow", "information": "blue", "hint": "dim"}


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    file: str | None
    class_name: str | None = None
    specs: tuple[str, ...] = ()
    as_json: bool = False
    object: str = ""
    config: str = ""
    smt2: Path | None = None
    python: str | None = None
    plugins: tuple[str, ...] = ()
    breaks: bool = False


def shapes(options: Options) -> int:
    """`tensorpoint shapes`: 1 if there are errors in the shapes, 2 if there is no table."""
    notebook: Notebook | None = None
    try:
        text = source_of(options.file) if options.file else ""
        if options.file and options.file.endswith(".ipynb"):
            notebook = Notebook(text)
            text = notebook.text
        if options.config:
            Path(options.config).read_bytes()
    except (OSError, UnicodeDecodeError, SyntaxError, BadNotebook) as error:
        where = "" if isinstance(error, OSError) else f"{options.file}: "
        print(f"tensorpoint shapes: {where}{error}", file=sys.stderr)
        return 2
    request = ShapeRequest(
        os.path.abspath(options.file) if options.file else "",
        text,
        options.class_name,
        options.specs,
        object=options.object,
        config=os.path.abspath(options.config) if options.config else "",
        plugins=options.plugins,
        breaks=options.breaks,
        own_specs=True,
    )
    if options.file:
        try:
            known = calls_in_project(Path(request.path))
        except BadProject as error:
            print(f"tensorpoint shapes: {error}", file=sys.stderr)
            return 2
        request = replace(request, known=(*known, *calls_in_last_run(request.path)))
    outcome = asyncio.run(trace(request, environment_of(options.python)))
    table = outcome.value
    if table is not None and options.file:
        table = with_measured(table, measured_hints(request.path, text))
    if table is None:
        print(f"tensorpoint shapes: {outcome.error}", file=sys.stderr)
        if outcome.traceback:
            print(outcome.traceback, file=sys.stderr)
        return 2
    if options.smt2 is not None:
        try:
            options.smt2.write_text(as_smt2(table), encoding="utf-8")
        except OSError as error:
            print(f"tensorpoint shapes: {error}", file=sys.stderr)
            return 2
    if options.as_json:
        print(json.dumps(as_json(table, notebook), indent=2, ensure_ascii=False))
    else:
        if not options.file and table.path:  # where the installed class is
            text = source_of(table.path)
        lines = notebook.lines if notebook else text.split("\n")
        _print(Console(highlight=False, emoji=False, soft_wrap=True), table, lines, notebook)
    if any(each.severity == "error" for each in table.diagnostics):
        return 1
    if not (table.calls or table.untraced or table.hints):
        print(
            f"tensorpoint shapes: nothing to trace in {options.file}: it has no class with a "
            "forward, and no function whose inputs are known. Say them in a comment in the "
            "function, # tensorpoint: x: f32[B, 3, H, W]",
            file=sys.stderr,
        )
    traced = table.calls or (table.hints and not table.untraced)
    return 0 if traced else 2


def source_of(path: str) -> str:
    """The text of a Python file, in the encoding that it says; that of a notebook."""
    if path.endswith(".ipynb"):
        return Path(path).read_text("utf-8")
    with tokenize.open(path) as file:
        return file.read()


def as_json(table: ShapeTable, notebook: Notebook | None = None) -> dict[str, Any]:
    """The table for programs; `target` is the first traced call, `others` are the rest.

    What is in a notebook has a `cell`, of its code cells, and its lines are those of the cell.
    """
    first: dict[str, Any] = {"target": None, "inputs": [], "assumptions": []}
    if table.calls:
        first = _call(table.calls[0])
    return {
        **first,
        "hints": [_fields(each, _HINT, notebook) for each in table.hints],
        "diagnostics": [_fields(each, _DIAGNOSTIC, notebook) for each in table.diagnostics],
        "others": [_call(each) for each in table.calls[1:]],
        "untraced": list(table.untraced),
    }


def as_smt2(table: ShapeTable) -> str:
    """The conditions of the first call: sizes that satisfy them go the way that was traced."""
    if not table.calls:
        return ""
    call = table.calls[0]
    lines = [f"; {call.constructor}", PRELUDE.rstrip()]
    lines += [f"(declare-const {name} Int)\n(assert (>= {name} 1))" for name in call.sizes]
    lines += [f"(assert {limit})" for limit in call.limits_smt]
    for each in table.conditions:
        if each.call == call.qualname:
            lines.append(f"(assert {each.smt}) ; line {each.span.line}: {each.text}")
    return "\n".join([*lines, "(check-sat)", "(get-model)", ""])


def _call(call: TracedCall) -> dict[str, Any]:
    return {
        "target": {"qualname": call.qualname, "constructor": call.constructor},
        "inputs": [
            {"name": i.name, "dtype": i.dtype, "shape": list(i.shape), "origin": i.origin}
            for i in call.inputs
        ],
        "assumptions": list(call.assumptions),
    }


def _fields(
    found: ShapeHint | ShapeDiagnostic, names: tuple[str, ...], notebook: Notebook | None
) -> dict[str, Any]:
    place: dict[str, Any] = asdict(found.span)
    if notebook is not None:
        place["cell"], place["line"] = notebook.place(found.span.line)
        place["end_line"] = notebook.place(found.span.end_line)[1]
    return {**place, **{name: getattr(found, name) for name in names}}


# -- text


def _print(
    console: Console, table: ShapeTable, lines: Sequence[str], notebook: Notebook | None
) -> None:
    for call in table.calls:
        _print_call(console, call)
    notes: dict[int, list[str]] = {}
    for hint in table.hints:
        if hint.kind in ("target", "argument"):
            said = " · ".join((f"{hint.name}: {hint.text}", *hint.notes))
            notes.setdefault(hint.span.line, []).append(said)
        elif hint.kind == "return":
            said = " · ".join((f"→ {hint.text}", *hint.notes))
            notes.setdefault(hint.span.end_line, []).append(said)
    faults: dict[int, list[ShapeDiagnostic]] = {}
    for found in table.diagnostics:
        faults.setdefault(found.span.line, []).append(found)
    for number in sorted(_shown(notes.keys() | faults.keys(), len(lines))):
        code = escape(lines[number - 1])
        said = escape("   ".join(notes.get(number, ())))
        place = str(number) if notebook is None else "{}:{}".format(*notebook.place(number))
        console.print(f"[dim]{place:>4}[/] {code}" + (f"  [cyan]# {said}[/]" if said else ""))
        for found in faults.get(number, ()):
            color, indent = _COLORS[found.severity], " " * (max(4, len(place)) + 1 + found.span.col)
            console.print(f"{indent}[{color}]^ {found.severity}: {escape(found.message)}[/]")
    for reason in table.untraced:
        console.print(f"[yellow]not traced:[/] {escape(reason)}")


def _shown(lines: AbstractSet[int], last: int) -> set[int]:
    """Lines with something to say, and those between them unless there are many."""
    wanted = sorted(lines)
    shown = set(wanted)
    for first, second in zip(wanted, wanted[1:]):
        if second - first <= 6:
            shown.update(range(first, second))
    return {number for number in shown if 1 <= number <= last}


def _print_call(console: Console, call: TracedCall) -> None:
    inputs = ", ".join(
        f"{i.name}: {i.dtype}[{', '.join(i.shape)}]" if i.shape else f"{i.name}: {i.dtype}"
        for i in call.inputs
    )
    facts = [f"{amount(call.parameters)} parameters"] if call.parameters else []
    if call.flops:
        sizes = ", ".join(f"{name} = {size}" for name, size in call.sizes.items())
        facts.append(amount(call.flops, "FLOPs") + (f" at {sizes}" if sizes else ""))
    origins = ", ".join(dict.fromkeys(i.origin for i in call.inputs))
    console.print(f"[bold]{escape(call.constructor)}[/]({escape(inputs)}) → {escape(call.output)}")
    console.print(
        f"  [dim]{escape(' · '.join([*facts, f'inputs: {origins}', *call.assumptions]))}[/]"
    )
