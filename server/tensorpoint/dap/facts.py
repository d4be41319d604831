"""Facts in a session: who wants them, `tensorpoint/facts`, and the table of `tp facts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import msgspec

from ..wire import Facts
from ..wire.codec import convert
from ..wire.facts import Layer, Output, Parameter
from . import injection, launch
from .peer import Peer

_ROWS = 40
_NOT_RECORDED = 'not recorded: tp record on (in a configuration or request: "record": true)'


@dataclass(frozen=True)
class Request:
    """What is asked for. `record` switches recording on or off first; `save` writes the file."""

    layers: str | None = None
    history: bool = False
    record: bool | None = None
    save: bool = False


def request(arguments: dict[str, Any]) -> Request:
    """The arguments of a client's request. Raises ValueError."""
    try:
        return convert(arguments, Request)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


class Recording:
    """Who wants facts in a session, and the file they are left in."""

    def __init__(self) -> None:
        self._wanted_by: set[str] = set()
        #: The program's file, and this process's: a child's has its process id at the end.
        self._base = self._file = ""

    @property
    def is_on(self) -> bool:
        """Whether somebody wants them."""
        return bool(self._wanted_by)

    @property
    def file_in_force(self) -> str:
        """The file of this process; "" if there is none, or nothing to leave in it."""
        return self._file if self._wanted_by else ""

    def want(self, source: Literal["launch", "console", "request"], on: bool) -> bool:
        """Want facts, or no longer, which from the console is for all. True if that is news."""
        before = self.is_on
        if on:
            self._wanted_by.add(source)
        elif source == "console":
            self._wanted_by.clear()
        else:
            self._wanted_by.discard(source)
        return self.is_on != before

    def take(self, arguments: dict[str, Any], is_child: bool) -> None:
        """Take our share out of launch or attach arguments. Raises ValueError."""
        record, self._base = launch.take_recording(arguments)
        self._file = f"{self._base}.{arguments.get('subProcessId')}" if is_child else self._base
        self._file = self._file if self._base else ""
        self.want("launch", record)

    def pass_on(self, configuration: dict[str, Any]) -> None:
        """Let a child process do as this one."""
        if self.is_on:
            configuration[launch.RECORD] = True
            if self._base:
                configuration[launch.FACTS_FILE] = self._base

    async def answer(self, request: Request, debugpy: Peer) -> dict[str, Any]:
        """The body of the answer. Raises AgentError, with the reason, where there is nothing."""
        body = await injection.facts(debugpy, asdict(request))
        if body.get("note") and request.record is None:
            raise injection.AgentError(str(body["note"]) if self.is_on else _NOT_RECORDED)
        return body

    async def table(self, glob: str, debugpy: Peer) -> str:
        """The facts for a person, in at most 40 lines each of layers and parameters."""
        if not self.is_on:
            return _NOT_RECORDED
        return table(convert(await injection.facts(debugpy, {"layers": glob}), Facts))


def table(facts: Facts) -> str:
    """Facts for a person, in at most 40 lines each of layers and parameters."""
    if facts.note is not None:
        return facts.note
    layers = _grid(
        ("layer", "class", "output", "mean", "std", "min", "max", "zero", "non-finite"),
        [_layer(item) for item in facts.layers[:_ROWS]],
        len(facts.layers),
    )
    parameters = _grid(
        ("parameter", "shape", "norm", "gradient norm", "age"),
        [_parameter(item) for item in facts.parameters[:_ROWS]],
        len(facts.parameters),
    )
    title = f"step {_number(facts.step)}, after {facts.optimizer_step} optimizer steps"
    return "\n\n".join(
        (title, layers or "no layer matches", *((parameters,) if parameters else ()))
    )


def _layer(item: Layer) -> Sequence[str]:
    name = item.module or "(root)"
    outputs = " ".join(map(_shape, item.outputs[:2])) + (" ..." if len(item.outputs) > 2 else "")
    numbers = item.statistics
    if numbers is None:
        return name, item.module_type, outputs, "", "", "", "", "", ""
    return (
        name,
        item.module_type,
        outputs,
        _number(numbers.mean),
        _number(numbers.std),
        _number(numbers.min),
        _number(numbers.max),
        f"{numbers.zero_fraction:.1%}",
        f"{numbers.nonfinite_fraction:.1%}",
    )


def _parameter(item: Parameter) -> Sequence[str]:
    norm = _number(item.gradient_norm) if item.gradient_finite is not False else "not finite"
    shape = f"{item.dtype}[{','.join(map(str, item.shape))}]"
    return item.parameter, shape, _number(item.norm), norm, _number(item.age)


def _shape(output: Output) -> str:
    return f"{output.dtype}[{','.join(map(str, output.shape))}]"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> str:
    """Columns as wide as they need; a note on what was left out. "" for no rows."""
    if not rows:
        return ""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    if total > len(rows):
        lines.append(f"... and {total - len(rows)} more: tp facts GLOB")
    return "\n".join(lines)
