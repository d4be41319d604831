"""A bad value that came into a recorded loss from before: with which operand, and from where.

A loss is recorded from the model's output on. What the program computed earlier, as advantages or
the weights of classes, is a bad operand there that no recorded operation has made. Which one it is,
and the lines that assign the variable that holds it, is what can be told of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Any

from ..frames import is_internal, outwards, short_file
from ..tensors import has_nonfinite
from .dispatch import is_same, storage_of, tensors_of
from .made import Made

#: Frames whose variables are looked through, and lines that are listed.
_FRAMES, _LINES = 32, 3


def entrance(made: Made) -> Made | None:
    """The operation that was given the value; None if one of those that are known has made it."""
    first = made.likely_way()[0]
    if first.operation is None:
        return None
    if first.is_from_outside:
        return first
    if not made.is_meant or first.cause is not None:
        return None
    # An infinity that was there before may be a mask; this one has come through to the end.
    while first.sources:
        first = next(iter(first.sources.values()))
    return first if first.outside and first.operation is not None else None


def brought_in(made: Made) -> tuple[str, Any]:
    """What the source calls the operand that held the value, and the operand."""
    operation = made.operation
    assert operation is not None
    argument = next(
        (name for name, has_nan in made.outside.items() if has_nan == made.has_nan),
        next(iter(made.outside)),
    )
    value = operation.arguments[argument]
    if isinstance(value, (list, tuple)):  # of torch.stack, ...
        bad = next(tensor for tensor in tensors_of(value) if has_nonfinite(tensor))
        return f"an operand of {operation.name}", bad
    return operation.names.get(argument, f"an operand of {operation.name}"), value


def in_words(made: Made, name: str, tensor: Any) -> str:
    """Where it came in, and what assigns it."""
    line = made.lines[0] if made.lines else None
    at = f" at {short_file(line.file)}:{line.line} in {line.function}" if line else ""
    text = (
        f"It came with {name}{at}, which was not finite before: your program computed it earlier, "
        "and that was not recorded."
    )
    held = next(_variables(tensor), None)
    if held is None:
        return text
    frame, variable, lines = held
    *most, last = map(str, lines)
    numbers = f"{', '.join(most)} and {last}" if most else last
    place = f"{short_file(frame.f_code.co_filename)}:{numbers}"
    return f"{text} {variable} is assigned at {place} in {frame.f_code.co_name}."


def _variables(tensor: Any) -> Iterator[tuple[FrameType, str, list[int]]]:
    """The variables of running functions that hold it or a view of it, and who assigns them."""
    from ..values import source  # only now: it reads the program's files

    torch = sys.modules["torch"]
    outside = (frame for frame in outwards(sys._getframe(1)) if not is_internal(frame))
    views: list[tuple[FrameType, str, list[int]]] = []
    for frame in islice(outside, _FRAMES):
        assigned = source.assigned_lines(frame.f_code)
        for name, value in list(frame.f_locals.items()):
            if type(value) is not torch.Tensor:
                continue
            lines = [item.line for item in assigned.get(name, ()) if not item.is_argument]
            if not 0 < len(lines) <= _LINES:
                continue
            if is_same(tensor, value):
                yield frame, name, lines
            elif storage_of(tensor) == storage_of(value):
                views.append((frame, name, lines))
    yield from views
