"""An entry or exit of a layer in one step: what `tensorpoint run --step layers` lists."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tensor:
    """A tensor of an input or output; `name` is that of the parameter, or "output".

    In `shape` a size that differs within a nested tensor is -1; torch's older nested tensors have
    none at all.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class LayerEvent:
    """One event, in the order in which they came.

    `phase` is "entry" or "exit" of a forward, "backward entry" or "backward exit", or "update" and
    "updated" of an optimizer. `inputs` are known at entries, `outputs` at exits; in backward they
    are the gradients, of the outputs at an entry and of the inputs at an exit. `depth` is 1 for a
    root.
    """

    path: str
    type: str
    phase: str
    depth: int
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
