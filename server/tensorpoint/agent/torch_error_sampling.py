"""What is said of a sampling that torch refused: which operand is no distribution, and since when.

The operand is what the line passes. One that is on no name, as `logits.log()`, is gone when torch
has raised, unless operations are recorded: no name of the line is taken for it.
"""

from __future__ import annotations

import re
from typing import Any

from .frames import short_file
from .ops.operands import Operand, Site, tensors_in
from .ops.operation import Operation
from .ops.peek import is_tensor
from .ops.recorder import Failed
from .tensors import has_nonfinite

#: Operations that draw from what they are given.
SAMPLING = frozenset({"bernoulli", "multinomial", "poisson"})


def drawn_from(called: Site) -> Operand | None:
    """The operand that holds the probabilities."""
    if called.receiver is not None and not called.receiver.is_literal:
        return called.receiver
    for item in called.arguments:
        if item.position == 0 or item.keyword == "input":
            return item
    return None


def sampling_notes(
    op: str, operand: Operand, value: Any, called: Site, failed: Failed | None
) -> list[str]:
    """Sentences about the operand of a sampling; its value is UNKNOWN if that is gone."""
    from . import causes  # only now: 2,000 lines of rules, which most exceptions don't need

    sources: dict[str, Operation] = {}
    if failed is not None:
        value, sources = failed.operation.arguments["self"], failed.operation.sources
    if not is_tensor(value):
        return _of_a_temporary(operand, called)
    operation = Operation(op, f"aten.{op}.default", {"self": value}, (), sources=sources)
    cause = causes.explain(operation, {"self": operand.expression})
    if cause is None:
        return []
    made = () if failed is None or failed.made is None else failed.made.likely_way()
    if not made or made[0].operation is None or made[0].is_from_outside:
        where = (
            []
            if failed is not None or not has_nonfinite(value)
            else ['Where it was made is known with precision "op".']
        )
        return [cause.cause, *where, cause.cure]
    first = made[0]
    line = first.lines[0] if first.lines else None
    at = f" at {short_file(line.file)}:{line.line} in {line.function}" if line else ""
    why = "." if first.cause is None else f": {first.cause.cause}"
    cure = cause.cure if first.cause is None else first.cause.cure
    return [cause.cause, f"It was made by {first.name}{at}{why}", cure]


def _of_a_temporary(operand: Operand, called: Site) -> list[str]:
    """What is left of it are the tensors on names that it was computed of, perhaps."""
    inner = [
        (name, tensor)
        for name, value in called.tensors
        if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", operand.expression)
        for _, tensor in tensors_in(name, value)
    ]
    bad = [name for name, tensor in inner if has_nonfinite(tensor)]
    if bad:
        return [f"{operand.expression} is gone, but {bad[0]} in it is not finite."]
    if not inner:
        return []
    names = " and ".join(dict.fromkeys(name for name, _ in inner))
    are = "are" if " and " in names else "is"
    return [
        f"{operand.expression} is gone. {names} {are} finite, so it became what it was in this "
        'line: precision "op" tells by which operation.'
    ]
