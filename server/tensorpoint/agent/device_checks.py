"""What is checked on a device by operations of torch: bytes by their sum, conversions by trying."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

#: Bytes are added up in rows and columns of so many.
_WIDTH = 2048


def adler32(data: Any) -> Any:
    """`zlib.adler32` of bytes, at most 4 MiB, as a tensor on their device (RFC 1950, section 9).

    Its halves are, modulo 65521: one and the sum of all bytes, and the sum of what that was after
    each, so that a byte counts once for itself and once for each that follows.
    """
    torch: Any = sys.modules["torch"]
    count = len(data)
    if count % _WIDTH:  # zeros in front of all others don't count
        whole = torch.zeros(-(-count // _WIDTH) * _WIDTH, dtype=data.dtype, device=data.device)
        whole[-count:] = data
        data = whole
    values = data.view(-1, _WIDTH).to(torch.int32)
    rows, columns = (values.sum(axis, dtype=torch.int32).to(torch.int64) for axis in (1, 0))
    after = torch.arange(len(rows), 0, -1, device=data.device) * _WIDTH
    place = torch.arange(_WIDTH, device=data.device)
    low = (1 + rows.sum()) % 65521
    high = (count + (rows * after).sum() - (columns * place).sum()) % 65521
    return (high << 16) | low


def converts_alike(given: Any, wanted: Any, convert: Callable[[Any], Any]) -> bool:
    """Whether a dtype is converted to another as the CPU does it, bit for bit, but for NaNs.

    `convert` takes a tensor on the CPU and gives one; values of all sorts are tried.
    """
    torch: Any = sys.modules["torch"]
    kinds = torch.float16, torch.bfloat16, torch.float32, torch.float64
    if not given.is_floating_point or given.itemsize > 4 or wanted not in kinds:
        return False
    count = 1 << 8 * min(given.itemsize, 2)
    if given.itemsize < 4:  # all that there are
        values = torch.arange(count).to(torch.uint8 if given.itemsize == 1 else torch.int16)
    else:  # all high halves, with low ones that are rounded up, down, and to even
        low = torch.tensor([0, 1, 0x0FFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
        values = ((torch.arange(count)[:, None] << 16) | low).to(torch.int32).flatten()
    values = values.view(given)
    here, there = values.to(wanted), convert(values)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[wanted.itemsize]
    same = (here.view(bits) == there.view(bits)) | (here.isnan() & there.isnan())
    return bool(same.all())
