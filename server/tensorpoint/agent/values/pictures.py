"""A tensor's numbers made small for a picture: a slice, an image, figures of each row.

All of it is made smaller where the tensor is, and comes to the host with one copy: at most 256 x
256 numbers of a slice. What is put together into one cell is the mean of its elements, so that a
cell with a NaN or an infinity in it shows that: a single one in a million would vanish else.
"""

from __future__ import annotations

import base64
import ctypes
import math
import sys
from collections.abc import Sequence
from typing import Any

from ..tensors import unseen
from . import devices, figures
from .devices import Unavailable
from .plain import shape_of

#: Cells of a picture, to each side.
_CELLS = 256
_PIXELS = 512
#: Rows whose figures are told.
_ROWS = 512
#: Elements of a slice that are looked at; beyond it, every so many rows and columns are.
_LOOKED_AT = 1 << 24


class NotPossible(ValueError):
    """There is no such picture of this tensor; the text says why."""


@unseen
def slice_of(tensor: Any, dims: Sequence[int] | None, index: Sequence[int]) -> dict[str, Any]:
    """A 2-D slice: `dims` are its rows and columns, `index` chooses in the other dimensions."""
    numbers = _numbers(tensor)
    shape = tuple(numbers.shape)
    if not shape:
        numbers, shape = numbers.reshape(1), (1,)
    chosen = _dims(shape, dims)
    plane, places = _plane(numbers, chosen, index)
    thin = _thinned(plane, (0, 1))
    cells = devices.fetch(plane, lambda: _cells(thin))
    if isinstance(cells, Unavailable):
        raise NotPossible(cells.reason)
    kept = [-(-size // fewer) for size, fewer in zip(plane.shape, thin.shape, strict=True)]
    return {
        "dims": list(chosen),
        "index": places,
        "size": [int(size) for size in plane.shape],
        "cells": [int(size) for size in cells.shape],
        "step": [_step(size) * of for size, of in zip(thin.shape, kept, strict=True)],
        "values": _encoded(cells.contiguous()),
    }


def _dims(shape: tuple[int, ...], dims: Sequence[int] | None) -> tuple[int, ...]:
    count = len(shape)
    if dims is None:
        return (count - 2, count - 1) if count > 1 else (0,)
    chosen = tuple(dim + count if dim < 0 else dim for dim in dims)
    fits = all(0 <= dim < count for dim in chosen) and len(set(chosen)) == len(chosen)
    if not fits or not 1 <= len(chosen) <= 2:
        raise NotPossible(f"dims: {list(dims)} are not one or two dimensions of {list(shape)}")
    return chosen


def _plane(numbers: Any, dims: tuple[int, ...], index: Sequence[int]) -> tuple[Any, list[int]]:
    shape = tuple(numbers.shape)
    others = [dim for dim in range(len(shape)) if dim not in dims]
    places = [int(index[at]) if at < len(index) else 0 for at in range(len(others))]
    for dim, place in zip(others, places, strict=True):
        if not 0 <= place < shape[dim]:
            raise NotPossible(
                f"index: {place} is not in dimension {dim}, which has {shape[dim]} elements"
            )
    for dim, place in sorted(zip(others, places, strict=True), reverse=True):
        numbers = numbers.select(dim, place)
    if len(dims) == 1:
        numbers = numbers.reshape(1, -1)
    elif dims[0] > dims[1]:
        numbers = numbers.transpose(0, 1)
    if numbers.numel() == 0:
        raise NotPossible("it is empty")
    return numbers, places


def _thinned(numbers: Any, dims: Sequence[int]) -> Any:
    """Every so many of these dimensions, so that few enough elements are looked at; a view."""
    while numbers.numel() > _LOOKED_AT:
        longest = max(dims, key=lambda dim: numbers.shape[dim])
        numbers = numbers[(slice(None),) * longest + (slice(None, None, 2),)]
    return numbers


def _step(size: int) -> int:
    """How many rows are one cell."""
    return -(-size // _CELLS)


def _cells(plane: Any) -> Any:
    """The plane in at most `_CELLS` rows and columns, as float32."""
    plane = figures.real(plane).float()
    for dim in (0, 1):
        step = _step(plane.shape[dim])
        if step > 1:
            plane = _joined(plane, dim, step)
    return plane


def _joined(plane: Any, dim: int, step: int) -> Any:
    """Each `step` rows as one: their mean, or what of them is not finite."""
    size = plane.shape[dim]
    whole = size // step
    parts = plane.narrow(dim, 0, whole * step).unflatten(dim, (whole, step)).mean(dim + 1)
    if whole * step == size:
        return parts
    rest = plane.narrow(dim, whole * step, size % step).mean(dim, keepdim=True)
    return sys.modules["torch"].cat([parts, rest], dim)


@unseen
def image_of(tensor: Any, index: Sequence[int]) -> dict[str, Any]:
    """The last three dimensions as an image, channels first: 1, 3 or 4 of them."""
    numbers = _numbers(tensor)
    shape = tuple(numbers.shape)
    if len(shape) == 2:
        numbers = numbers.unsqueeze(0)
    elif len(shape) < 3 or shape[-3] not in (1, 3, 4):
        raise NotPossible(
            f"{list(shape)} is no image: that has 1, 3 or 4 channels before its sides"
        )
    places = [int(index[at]) if at < len(index) else 0 for at in range(numbers.dim() - 3)]
    for dim, place in enumerate(places):
        if not 0 <= place < numbers.shape[0]:
            raise NotPossible(
                f"index: {place} is not in dimension {dim}, which has {numbers.shape[0]} elements"
            )
        numbers = numbers.select(0, place)
    if numbers.numel() == 0:
        raise NotPossible("it is empty")
    pixels = devices.fetch(numbers, lambda: _pixels(numbers))
    if isinstance(pixels, Unavailable):
        raise NotPossible(pixels.reason)
    return {
        "index": places,
        "size": [int(numbers.shape[1]), int(numbers.shape[2])],
        "pixels": [int(pixels.shape[0]), int(pixels.shape[1])],
        "rgba": _encoded(pixels),
    }


def _pixels(numbers: Any) -> Any:
    """RGBA bytes; what is not finite is magenta."""
    torch = sys.modules["torch"]
    step = max(1, -(-max(numbers.shape[1:]) // _PIXELS))
    part = figures.real(numbers[:, ::step, ::step]).float()
    good = torch.isfinite(part)
    low = torch.where(good, part, math.inf).amin()
    high = torch.where(good, part, -math.inf).amax()
    scaled = ((part - low) / (high - low).clamp(min=1e-30)).clamp(0, 1) * 255
    if numbers.dtype == torch.uint8:
        scaled = part
    channels = scaled if part.shape[0] >= 3 else scaled[:1].expand(3, -1, -1)
    opaque = torch.full_like(channels[:1], 255.0)
    colours = torch.cat([channels[:3], channels[3:4] if part.shape[0] == 4 else opaque])
    bad = ~good.all(0)
    magenta = torch.stack([torch.full_like(bad, value, dtype=colours.dtype) for value in _MAGENTA])
    colours = torch.where(bad, magenta, colours)
    return colours.to(torch.uint8).permute(1, 2, 0).contiguous()


_MAGENTA = (255, 0, 255, 255)


@unseen
def rows_of(tensor: Any, dim: int) -> dict[str, Any]:
    """Mean, deviation, extremes and what is not finite, for each index of a dimension."""
    numbers = _numbers(tensor)
    shape = tuple(numbers.shape)
    if not -len(shape) <= dim < len(shape):
        raise NotPossible(f"dim: {dim} is none of the {len(shape)} dimensions")
    dim %= len(shape)
    rows = numbers.transpose(0, dim)[:_ROWS]
    kept = _thinned(rows, range(1, rows.dim()) or (0,))
    found = devices.run(numbers, lambda: _row_figures(kept.reshape(kept.shape[0], -1)))
    if isinstance(found, Unavailable):
        raise NotPossible(found.reason)
    names = ("mean", "std", "min", "max", "nonfinite")
    return {
        "dim": dim,
        "rows": int(shape[dim]),
        **{
            name: [value if math.isfinite(value) else None for value in column]
            for name, column in zip(names, found, strict=True)
        },
    }


def _row_figures(rows: Any) -> Any:
    torch = sys.modules["torch"]
    rows = figures.real(rows).double() if rows.numel() < 1 << 20 else figures.real(rows)
    good = torch.isfinite(rows)
    count = good.sum(1).clamp(min=1)
    mean = torch.where(good, rows, 0).sum(1) / count
    spread = torch.where(good, rows - mean[:, None], 0).square().sum(1) / (count - 1).clamp(min=1)
    low = torch.where(good, rows, math.inf).amin(1)
    high = torch.where(good, rows, -math.inf).amax(1)
    return torch.stack([mean, spread.sqrt(), low, high, (~good).sum(1).to(mean.dtype)])


def _numbers(tensor: Any) -> Any:
    numbers, of = figures.numbers_of(tensor)
    if isinstance(numbers, Unavailable):
        raise NotPossible(numbers.reason)
    if of == "the stored values" or tuple(numbers.shape) != shape_of(tensor):
        raise NotPossible(f"{of or 'what is stored'} has no place in a picture")
    return numbers


def _encoded(tensor: Any) -> str:
    """Its bytes in base64: floats as they are, with NaN and infinities, which JSON hasn't."""
    data = ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())
    return base64.b64encode(data).decode("ascii")
