"""What the agent says of one stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .operation import OperationReport


@dataclass(frozen=True)
class TensorSummary:
    """A tensor with non-finite elements, in numbers.

    `first_index` is the index of the first non-finite element; `finite_min` and `finite_max` span
    the finite ones and are None where there are none.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    device: str
    elements: int
    nan: int
    posinf: int
    neginf: int
    first_index: tuple[int, ...] | None
    finite_min: float | None
    finite_max: float | None


@dataclass(frozen=True)
class Stop:
    """One stop: what fired, where, and the diagnosis in words.

    `module` is the path below the root module, "" for the root itself. `file`, `line`, `function`
    are the frame the debugger shows on top; `user_file` and `user_line` the nearest frame of the
    user's own code (None where there is none). `step` counts forward calls of the root module from
    0, `optimizer_step` finished optimizer steps. `value` is the value of the metric that fired: for
    `nonfinite` the number of non-finite elements. `operation` is what made the value, None where it
    was not looked for or not found. `replayed_frames` are the files and functions of the frames on
    top that belong to a second run of the forward, innermost first.
    """

    tensorpoint: int
    condition: str
    event: str
    module: str
    module_type: str
    file: str
    line: int
    function: str
    user_file: str | None
    user_line: int | None
    step: int | None
    optimizer_step: int | None
    value: float | int | None
    description: str
    text: str
    tensor: TensorSummary | None = None
    operation: OperationReport | None = None
    replayed_frames: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Stop:
        """From what `dataclasses.asdict` makes of one."""
        tensor, operation = fields["tensor"], fields["operation"]
        given: dict[str, Any] = {
            "tensor": TensorSummary(**tensor) if tensor else None,
            "operation": OperationReport.of(operation) if operation else None,
        }
        return cls(**{**fields, **given})

    @property
    def replayed(self) -> bool:
        """Whether the frames on top are those of a second run."""
        return bool(self.replayed_frames)
