"""What clients may ask of values; the fields are documented in docs/values.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryRequest:
    """DAP's `readMemory`: `offset` and `count` in bytes."""

    memoryReference: str  # noqa: N815 - DAP's name
    count: int
    offset: int = 0


@dataclass(frozen=True)
class InlineRequest:
    """`tensorpoint/inlineValues`: the visible locals of a frame."""

    frameId: int  # noqa: N815


@dataclass(frozen=True)
class DataRequest:
    """DAP's `dataBreakpointInfo`: a row below a variables reference, or an expression."""

    name: str
    variablesReference: int = 0  # noqa: N815
    frameId: int = 0  # noqa: N815
    mode: str = ""


@dataclass(frozen=True)
class TensorRequest:
    """`tensorpoint/tensor`: a value, by its variables reference or by an expression in a frame.

    `parts` are "figures", "slice", "image", "rows", "history" and "attention". `dims` are the rows
    and columns of the slice (the last two, if not given), `index` chooses in the dimensions before
    those (of an attention the head), and `dim` is the one whose rows are told.
    """

    variablesReference: int = 0  # noqa: N815
    expression: str | None = None
    frameId: int = 0  # noqa: N815
    parts: tuple[str, ...] = ("figures",)
    dims: tuple[int, ...] | None = None
    index: tuple[int, ...] = ()
    dim: int = 0
