"""The numbers of tensors, and which element of an output is to be explained.

Of an output full of NaN one element is explained. It is the first that is bad although the operands
at that place are finite: next to a deliberate -inf, or in a tensor that held NaN before, that is
the one the operation made. Where there is none (inf - inf), it is the first NaN of operands that
are none, else the first NaN, else the first infinity.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from ..tensors import values_of

if TYPE_CHECKING:
    import torch

#: Elements that are looked at in one go, so that temporaries stay small.
_CHUNK = 1 << 24
#: Elements that are worth a copy in float64.
_MOST_EXACT = 1 << 26


def numbers_of(value: object) -> torch.Tensor | None:
    """The numbers of a real tensor, without gradient, mode or subclass; None if it has none."""
    torch = sys.modules["torch"]
    if not isinstance(value, torch.Tensor):
        return None
    tensor = cast("torch.Tensor", value)
    if tensor.is_complex():
        return None
    if tensor.is_floating_point():
        values = values_of(tensor)
        return values if values is not None and values.shape == tensor.shape else None
    ours: Any = type(tensor)
    plain = ours.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    usable = plain and not tensor.is_meta and not tensor.is_quantized and not tensor.is_nested
    return tensor.detach() if usable and tensor.layout is torch.strided else None


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """A small tensor in float64, where sums don't overflow; on the CPU, since not all have it."""
    return tensor.detach().cpu().double()


def is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor may be computed with in float64; what is larger is not explained."""
    return tensor.numel() <= _MOST_EXACT


def is_inside(index: tuple[int, ...], tensor: torch.Tensor) -> bool:
    """Whether a tensor has something at an index."""
    return len(index) <= tensor.dim() and all(map(int.__lt__, index, tensor.shape))


def fits(operand: torch.Tensor, output: torch.Tensor) -> bool:
    """Whether an operand broadcasts to an output."""
    ahead = output.dim() - operand.dim()
    return ahead >= 0 and all(
        size in (1, output.shape[ahead + dim]) for dim, size in enumerate(operand.shape)
    )


def best_index(
    output: torch.Tensor, operands: list[torch.Tensor], spoilt: bool
) -> tuple[int, ...] | None:
    """The element by the order that the module describes; `spoilt` says that none is fresh."""
    operands = [operand.expand(output.shape) for operand in operands]
    found: dict[int, tuple[int, ...]] = {}
    for start, size in _pieces(output):
        rows = slice(start, start + size)
        part = output[rows] if output.dim() else output
        near = [operand[rows] if output.dim() else operand for operand in operands]
        for rank, mask in enumerate(_masks(part, near, spoilt)):
            if rank not in found and bool(mask.any()):
                index = unravel(int(mask.reshape(-1).byte().argmax()), part.shape)
                found[rank] = (index[0] + start, *index[1:]) if index else ()
        if 0 in found:
            break
    return found[min(found)] if found else None


def _masks(
    part: torch.Tensor, operands: list[torch.Tensor], spoilt: bool
) -> Iterator[torch.Tensor]:
    """Which elements are fresh, a NaN of none, a NaN, bad."""
    torch = sys.modules["torch"]
    bad, nan = ~torch.isfinite(part), torch.isnan(part)
    fresh, of_none = bad, nan
    for operand in operands:
        fresh = fresh & torch.isfinite(operand)
        of_none = of_none & ~torch.isnan(operand)
    yield torch.zeros_like(fresh) if spoilt else fresh
    yield of_none
    yield nan
    yield bad


def _pieces(output: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Starts and sizes of pieces along the first dimension."""
    if output.dim() == 0:
        yield 0, 1
        return
    size = max(1, _CHUNK * len(output) // output.numel())
    for start in range(0, len(output), size):
        yield start, size


def unravel(offset: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of the element at `offset` in row-major order."""
    index: list[int] = []
    for size in reversed(shape):
        index.append(offset % size)
        offset //= size
    return tuple(reversed(index))
