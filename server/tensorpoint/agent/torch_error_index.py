"""Which element torch refused, as an index that a table has not, and where it stands.

torch says "index out of range in self", or the number but not its place, or only what is wanted of
all elements. The tensor that holds it is among the operands. On a GPU it isn't read: after an
assertion of the device nothing can be.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from .ops.peek import is_tensor
from .tensors import unseen

_OF_DIMENSION = re.compile(r"index (-?\d+) is out of bounds for dimension (\d+) with size (\d+)")
_OF_CLASSES = re.compile(r"Target (-?\d+) is out of bounds")


@dataclass(frozen=True)
class _Range:
    """What torch wants of all elements, by its words."""

    words: str
    low: float
    high: float = inf
    of_integers: bool = True


_RANGES = (
    _Range("should be between 0 and 1", 0, 1, of_integers=False),  # binary_cross_entropy
    _Range("Length of all samples has to be greater than 0", 1),  # pack_padded_sequence
    _Range("Class values must be non-negative", 0),  # one_hot
)


def index_note(
    message: str, op: str | None, module: Any, given: Sequence[tuple[str, Any]]
) -> str | None:
    """One sentence; None where the operands don't show it."""
    tensors = [(name, value) for name, value in given if is_tensor(value)]
    for wanted in _RANGES:
        if wanted.words in message:
            return _out_of(wanted, tensors)
    integers = [item for item in tensors if _can_be_read(item[1])]
    values = [value for _, value in tensors if value.is_floating_point()]
    if found := _OF_DIMENSION.search(message):
        index, dimension, size = map(int, found.groups())
        return _said(integers, index, f"dimension {dimension} has {size} elements", size)
    if found := _OF_CLASSES.search(message):
        sizes = values[0].shape if values else ()
        if not sizes:
            return None
        classes = sizes[1 if len(sizes) > 1 else 0]
        return _said(integers, int(found[1]), f"there are {classes} classes", classes)
    if op == "embedding" and "out of range" in message and integers:
        rows = getattr(module, "num_embeddings", None)
        if rows is None and values:
            rows = values[0].shape[0]
        if rows is not None:
            name, indices = integers[0]
            return _said([(name, indices)], _worst(indices), f"the table has {rows} rows", rows)
    return None


def _can_be_read(tensor: Any) -> bool:
    kind = str(tensor.dtype).removeprefix("torch.")
    return kind.startswith(("int", "uint")) and tensor.device.type == "cpu" and tensor.numel() > 0


def _are_floats(tensor: Any) -> bool:
    return tensor.is_floating_point() and tensor.device.type == "cpu"


@unseen
def _out_of(wanted: _Range, holders: list[tuple[str, Any]]) -> str | None:
    """The first element of the first tensor that isn't what is wanted; NaN isn't either."""
    for name, tensor in holders:
        if not (_can_be_read(tensor) if wanted.of_integers else _are_floats(tensor)):
            continue
        bad = ~((tensor >= wanted.low) & (tensor <= wanted.high))
        places = bad.nonzero()
        if len(places):
            place = places[0].tolist()
            value = tensor[tuple(place)].item()
            shown = f"{value:.4g}" if isinstance(value, float) else value
            at = f" at {place}" if place else ""
            return f"{name} holds {shown}{at}; {len(places)} of {tensor.numel()} are out of bounds."
    return None


@unseen
def _said(holders: list[tuple[str, Any]], index: int, there_are: str, size: int) -> str | None:
    for name, tensor in holders:
        places = (tensor == index).nonzero()
        if len(places):
            place = places[0].tolist()
            at = f" at {place}" if place else ""
            return f"{name} holds {index}{at}; {there_are}, 0 to {size - 1}."
    return None


@unseen
def _worst(indices: Any) -> int:
    """The index furthest out of a table: negative, or the largest."""
    low, high = int(indices.min()), int(indices.max())
    return low if low < 0 else high
