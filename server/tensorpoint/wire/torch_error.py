"""What the agent says of an exception that an operation of torch's raised."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ErrorOperand:
    """What went into the operation: `name` is the expression in the source.

    A tensor has dtype, shape (a size that is symbolic, as text) and device, a number its `value` in
    words. Of what is on no name any more, all are None.
    """

    name: str
    dtype: str | None = None
    shape: tuple[int | str, ...] | None = None
    device: str | None = None
    value: str | None = None


@dataclass(frozen=True)
class TorchError:
    """An exception of torch's: the operation, its operands, the module and the line.

    `op` is the name of the function or the operator ("linear", "+"), None where only the module is
    known. `module` is the path below the root module, "" for the root itself, None outside of any
    module. `file`, `line`, `function` are the call in the program or in its model's library, not in
    torch, and `source` is the text of that call, "" if there is no source. `notes` are further
    sentences, `text` is all of it in words.
    """

    type: str
    message: str
    op: str | None
    module: str | None
    module_type: str | None
    file: str
    line: int
    function: str
    source: str
    operands: tuple[ErrorOperand, ...]
    notes: tuple[str, ...]
    step: int | None
    description: str
    text: str
