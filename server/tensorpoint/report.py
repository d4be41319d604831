"""What a person reads at a stop, in a terminal or in a log.

The report goes to standard error, so that the program's own output stays what it was. It uses no
character outside ASCII of its own, wraps only on a real terminal (a log keeps one line a line, for
grep) and takes every text of the program literally: none of it is markup or a control sequence.
"""

from __future__ import annotations

import json
import math
import sys
import tokenize
from dataclasses import asdict
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from tensorpoint.wire import Stop
from tensorpoint.wire.layer_event import LayerEvent

_CONTEXT_LINES = 3
_MAX_HIGHLIGHTED_BYTES = 300_000

#: The keys of the JSON object that `tensorpoint run --json` writes for a stop, in order.
JSON_KEYS = (
    "condition",
    "event",
    "module",
    "module_type",
    "op",
    "op_file",
    "op_line",
    "operands",
    "cause",
    "cure",
    "forward_file",
    "forward_line",
    "replayed",
    "file",
    "line",
    "function",
    "user_file",
    "user_line",
    "step",
    "optimizer_step",
    "value",
    "text",
)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the caller what follows; rich would exit with status 1."""
        raise BrokenPipeError


def report_console(file: IO[str] | None = None, *, width: int | None = None) -> Console:
    """A console for reports, on standard error by default."""
    return _Console(
        file=file if file is not None else sys.stderr,
        width=width,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=not (file if file is not None else sys.stderr).isatty(),
    )


def layer_as_json(event: LayerEvent) -> str:
    """One line of JSON for an entry or exit of a layer."""
    return json.dumps(asdict(event))


def layer_line(event: LayerEvent) -> str:
    """The same for a person: indented by its depth."""
    tensors = ", ".join(
        f"{tensor.name} {tensor.dtype}{list(tensor.shape)}"
        for tensor in (*event.inputs, *event.outputs)
    )
    name = f"{event.path or '(root)'} ({event.type})"
    return f"{'  ' * (event.depth - 1)}{event.phase} {name}  {tensors}".rstrip()


def stop_as_json(stop: Stop) -> str:
    """One line of JSON. A `value` that JSON can't hold (NaN, infinities) is null."""
    operation = stop.operation
    of_operation = {
        "op": operation and operation.name,
        "op_file": operation and operation.file,
        "op_line": operation and operation.line,
        "operands": [asdict(operand) for operand in operation.operands] if operation else None,
        "cause": operation and operation.cause,
        "cure": operation and operation.cure,
        "forward_file": operation and operation.forward_file,
        "forward_line": operation and operation.forward_line,
    }
    fields = {
        key: of_operation[key] if key in of_operation else getattr(stop, key) for key in JSON_KEYS
    }
    value = stop.value
    if isinstance(value, float) and not math.isfinite(value):
        fields["value"] = None
    return json.dumps(fields)


def print_stop(
    console: Console, stop: Stop, *, number: int | None = None, process: str | None = None
) -> None:
    """The whole report of one stop."""
    console.print()
    console.print(_headline(stop, number, process))
    if stop.text and stop.text != stop.description:
        console.print(Text(_clean(stop.text)))
    console.print()
    if made := _made_elsewhere(stop):
        _print_place(console, *made)
    _print_place(console, stop.file, stop.line, f"in {stop.function}")
    if stop.user_file and stop.user_line and _user_place_differs(stop):
        _print_place(console, stop.user_file, stop.user_line, "called from your code")
    for label, value in _facts(stop):
        console.print(Text.assemble((f"{label:<13}", "dim"), _clean(value)))
    console.print()


def _headline(stop: Stop, number: int | None, process: str | None) -> Text:
    headline = Text("tensorpoint", style="bold red")
    if number is not None:
        headline.append(f" stop {number}")
    if process:
        headline.append(f" [{_clean(process)}]")
    headline.append(": ")
    headline.append(_clean(stop.description or stop.event), style="bold")
    return headline


def _facts(stop: Stop) -> list[tuple[str, str]]:
    module = f"{stop.module or 'the model itself'} ({stop.module_type})"
    facts = [("module", module if stop.module_type else _no_module(stop))]
    if stop.operation is not None:
        facts.append(("op", stop.operation.name))
        for passed in stop.operation.way[1:]:
            place = f", {passed.file}:{passed.line}" if passed.file else ""
            inside = f" in {passed.module}" if passed.module else ""
            facts.append(("then", f"{passed.op}{inside}{place}"))
    if stop.step is not None:
        step = f"{stop.step}"
        if stop.optimizer_step is not None:
            step += f", after {stop.optimizer_step} optimizer steps"
        facts.append(("step", step))
    facts.append(("tensorpoint", stop.condition or stop.event))
    return facts


def _no_module(stop: Stop) -> str:
    """A norm of all gradients is the whole model's; a value belongs to a layer or to none."""
    if stop.event.startswith("nonfinite"):
        return "none: your program computes it outside of all layers"
    return "the model as a whole"


def _made_elsewhere(stop: Stop) -> tuple[str, int, str] | None:
    """File and line of the operation, with a note, where the stop had to be at another line."""
    operation = stop.operation
    if operation is None or operation.file is None or operation.line is None:
        return None
    place = (operation.file, operation.line)
    if place in ((stop.file, stop.line), (stop.user_file, stop.user_line)):
        return None
    of_forward = operation.node and place == (operation.forward_file, operation.forward_line)
    what = "the forward of the operation" if of_forward else "the operation"
    inside = f", in {operation.function}" if operation.function else ""
    return (*place, what + inside)


def _user_place_differs(stop: Stop) -> bool:
    return (stop.user_file, stop.user_line) != (stop.file, stop.line)


def _print_place(console: Console, file: str, line: int, note: str) -> None:
    place = Text.assemble((_clean(f"{file}:{line}"), "cyan"), f" {_clean(note)}")
    # Never broken over two lines: terminals make it a link.
    console.print(place, soft_wrap=True)
    source = _source_lines(Path(file))
    if not 1 <= line <= len(source):
        console.print(Text("  (the source is not there to show)", style="dim"))
    else:
        _print_excerpt(console, source, line)
    console.print()


def _print_excerpt(console: Console, source: list[Text], line: int) -> None:
    first = max(1, line - _CONTEXT_LINES)
    last = min(len(source), line + _CONTEXT_LINES)
    while last > line and not source[last - 1].plain.strip():
        last -= 1
    width = len(str(last))
    margin = _common_indent([source[n - 1].plain for n in range(first, last + 1)])
    for number in range(first, last + 1):
        here = number == line
        row = Text()
        row.append("> " if here else "  ", style="bold red")
        row.append(f"{number:>{width}} | ", style="bold" if here else "dim")
        row.append_text(source[number - 1][margin:])
        row.rstrip()
        if console.is_terminal:
            console.print(row, no_wrap=True, overflow="crop")
        else:
            console.print(row, soft_wrap=True)


def _source_lines(path: Path) -> list[Text]:
    """The lines of a source file, coloured; none where it can't be read."""
    try:
        with tokenize.open(path) as file:
            code = file.read()
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        try:
            code = path.read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError):
            return []
    code = _clean(code.expandtabs(4)).removesuffix("\n")
    if len(code) <= _MAX_HIGHLIGHTED_BYTES:
        try:
            lines = list(Syntax("", "python", theme="ansi_dark").highlight(code).split("\n"))
            # A lexer may drop or add lines at the ends: then colours would move the pointer.
            if [line.plain for line in lines] == code.split("\n"):
                return lines
        except Exception:
            # Colours are not worth losing the report for.
            pass
    return [Text(line) for line in code.split("\n")]


def _common_indent(lines: list[str]) -> int:
    return min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)


def _clean(text: str) -> str:
    """The text without anything that a terminal would obey."""
    return "".join(c if c in "\n\t" or c.isprintable() else _escaped(c) for c in text)


def _escaped(char: str) -> str:
    # \r\n is a line end, a surrogate can't be encoded, everything else may be a control sequence.
    return "" if char == "\r" else char.encode("unicode_escape").decode("ascii")
