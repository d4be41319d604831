"""Where a value comes from: the line and layer of a tensor, the definition of a parameter.

Of a tensor, in this order: the record of operations (precision "op") knows the line; the graph
knows it in anomaly mode; else the graph knows the layer, by the parameters that went into the last
operation, and the recorded facts or the source know the line that called that; at last, the
variable of a frame that holds it was assigned at a line. What comes from the source alone says so:
"called", "assigned".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from types import FrameType
from typing import Any, TypeVar

from ..frames import is_internal, outwards, short_file
from . import graph, source
from .known import Known
from .plain import is_parameter, read

T = TypeVar("T")

#: Frames whose variables are looked through for a tensor.
_FRAMES = 32


@dataclass(frozen=True)
class Place:
    """A line of the program, and what it is to the value."""

    file: str
    line: int
    text: str
    #: Whether the file is named as the client knows it.
    is_mapped: bool = False


def maker(tensor: Any, known: Known, frame: FrameType | None) -> Place | None:
    """What made a tensor, seen from a frame: operation, layer and line, as far as is known."""
    function = read(tensor, "grad_fn")
    module = None if function is None else _layer_of(function, known)
    layer = "" if module is None else f", layer {_name(module, known)}"
    recorded = known.made_by(tensor)
    if recorded is not None:
        name, line = recorded
        where = _at(line.file, line.line, line.function)
        return Place(line.file, line.line, f"{name} {where}{layer}")
    name = "" if function is None else graph.operation_of(function)
    place = None if function is None else graph.forward_line(function)
    if place is not None:
        return Place(place[0], place[1], f"{name} {_at(*place)}{layer}")
    if module is not None:
        return _of_layer(module, f"{name} of {_name(module, known)}", known)
    return _assigned(tensor, frame, f"{name}, " if name else "")


def unplaced(tensor: Any, known: Known) -> str:
    """What is said of a tensor whose line isn't known."""
    function = read(tensor, "grad_fn")
    if function is None:
        return 'not recorded: it has no graph. With precision "op" each operation is'
    module = _layer_of(function, known)
    layer = "" if module is None else f" of {_name(module, known)}"
    return f"{graph.operation_of(function)}{layer}; its line is not recorded"


def _layer_of(function: Any, known: Known) -> Any:
    """The layer whose parameters went into an operation; None where there are none."""
    owners = (known.owners.owner(parameter)[0] for parameter in graph.parameters_of(function))
    return next((module for module in owners if module is not None), None)


def _of_layer(module: Any, text: str, known: Known) -> Place | None:
    fact = known.layer(module)
    if fact is not None and fact.file is not None and fact.line is not None:
        where = _at(fact.file, fact.line, fact.function or "")
        return Place(fact.file, fact.line, f"{text}, called {where}", is_mapped=True)
    for kind, name in _holders(module, known):
        found = _of_program(kind, name, source.calls) or []
        if len(found) == 1:
            return Place(found[0][0], found[0][1], f"{text}, called {_at(*found[0])}")
        if found:  # it may have been any of them
            break
    defined = module_definition(module, known)
    if defined is None:
        return None
    return Place(defined.file, defined.line, f"{text}, defined at {defined.text}")


def _assigned(tensor: Any, frame: FrameType | None, text: str) -> Place | None:
    for outer in islice(outwards(frame), _FRAMES):
        if is_internal(outer):
            continue
        for name, value in list(outer.f_locals.items()):
            line = _line_of(outer, name, arguments=False) if value is tensor else None
            if line is not None:
                code = outer.f_code
                where = _at(code.co_filename, line, code.co_name)
                return Place(code.co_filename, line, f"{text}assigned to {name} {where}")
    return None


def definition(tensor: Any, known: Known) -> Place | None:
    """The line that defines a parameter or its layer."""
    if not is_parameter(tensor):
        return None
    module, name = known.owners.owner(tensor)
    if module is None:
        return None
    own = _of_program(type(module), name, source.assignments)
    if own is not None:
        return _defined(*own, type(module))
    return module_definition(module, known)


def module_definition(module: Any, known: Known) -> Place | None:
    """The line of the program that makes a layer: in the class of the module around it."""
    for kind, name in _holders(module, known):
        found = _of_program(kind, name, source.assignments)
        if found is not None:
            return _defined(*found, kind)
    return None


def _defined(file: str, line: int, kind: type) -> Place:
    return Place(file, line, f"{short_file(file)}:{line} in {kind.__name__}")


def _holders(module: Any, known: Known) -> list[tuple[type, str]]:
    """The classes of the modules around one, the nearest first, and its way in as each names it."""
    path = known.owners.path(module)
    return [
        (
            type(holder),
            path.removeprefix(known.owners.path(holder)).lstrip(".").partition(".")[0],
        )
        for holder in reversed(known.owners.ancestors(module))
        if holder is not module
    ]


def _of_program(kind: type, name: str, find: Callable[[type], dict[str, T]]) -> T | None:
    """What the source of a class says of a name; of a class of torch's nothing."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in ("torch", "builtins"):
            return None
        found = find(base).get(name)
        if found is not None:
            return found
    return None


def assigned(frame: FrameType, name: str) -> tuple[str, int] | None:
    """Where in the frame's function `name` was last assigned above the line it stands at."""
    line = _line_of(frame, name, arguments=True)
    return None if line is None else (frame.f_code.co_filename, line)


def _line_of(frame: FrameType, name: str, *, arguments: bool) -> int | None:
    found = source.assigned_lines(frame.f_code).get(name, ())
    lines = [item.line for item in found if arguments or not item.is_argument]
    above = [line for line in lines if line <= frame.f_lineno]
    return (above or lines)[-1] if lines else None


def _name(module: Any, known: Known) -> str:
    kind, path = type(module).__name__, known.owners.path(module)
    return f"{path} ({kind})" if path else kind


def _at(file: str, line: int, function: str) -> str:
    return f"at {short_file(file)}:{line}" + (f" in {function}" if function else "")
