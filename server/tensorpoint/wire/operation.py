"""What the agent says of the operation that made a bad value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Operand:
    """A tensor that went into the operation, as it was before.

    `name` is the expression in the source, or the argument's name in torch's schema. `min` and
    `max` span the finite elements and are None where there are none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    device: str
    min: float | None
    max: float | None
    nonfinite: int


@dataclass(frozen=True)
class PassedBy:
    """An operation on the way from the producer to the value that the watch saw."""

    op: str
    module: str
    file: str | None
    line: int | None


@dataclass(frozen=True)
class OperationReport:
    """The operation: `name` is torch's ("aten.log.default").

    `file`, `line`, `function` are the program's own line that called it, None where there is none.
    For one of a backward pass, `node` is the autograd node and `forward_op` the operation that it
    belongs to, called at `forward_file` and `forward_line`; the line is that one too, unless Python
    of the program's ran it. `cause` and `cure` are one sentence each, None where no rule fits.
    `way` leads from this operation, which comes first, to the value that was seen.
    """

    name: str
    file: str | None
    line: int | None
    function: str | None
    operands: tuple[Operand, ...] = ()
    cause: str | None = None
    cure: str | None = None
    node: str | None = None
    forward_op: str | None = None
    forward_file: str | None = None
    forward_line: int | None = None
    way: tuple[PassedBy, ...] = ()

    @classmethod
    def of(cls, fields: dict[str, Any]) -> OperationReport:
        """From what `dataclasses.asdict` makes of one."""
        given: dict[str, Any] = {
            "operands": tuple(Operand(**item) for item in fields["operands"]),
            "way": tuple(PassedBy(**item) for item in fields["way"]),
        }
        return cls(**{**fields, **given})
