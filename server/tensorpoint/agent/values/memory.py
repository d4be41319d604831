"""`readMemory`: bytes of a tensor's storage, from where the tensor begins."""

from __future__ import annotations

import base64
import ctypes
import sys
from typing import Any

from ..tensors import unseen
from . import devices
from .devices import Unavailable
from .plain import call, why_hollow

#: Of one request; a client that wants more asks again.
_MOST = 1 << 20


@unseen
def read_memory(tensor: Any, offset: int, count: int) -> dict[str, Any]:
    """The body of the answer: `data` in base64, and how many bytes there are none of."""
    if count < 0:
        raise ValueError(f"a count of {count} bytes can't be read")
    reason = why_hollow(tensor) or devices.why_not(tensor)
    if reason is not None:
        raise ValueError(reason)
    try:
        storage = call(tensor, "untyped_storage")
        size = storage.nbytes()
        start = call(tensor, "storage_offset") * call(tensor, "element_size") + offset
        address = storage.data_ptr() + max(0, min(start, size))
    except RuntimeError as error:
        raise ValueError(f"it has no memory of its own: {error}") from None
    body: dict[str, Any] = {"address": hex(address)}
    if start < 0:  # what lies before the storage; the client may go on behind that
        return {**body, "unreadableBytes": min(count, -start)}
    there = max(0, min(count, size - start))
    if there > _MOST:  # fewer than there are would mean that the memory ends there
        raise ValueError(f"{count:,} bytes are too many at once: ask for up to {_MOST:,}")
    body["data"] = _encoded(storage, start, there)
    return {**body, "unreadableBytes": count - there} if there < count else body


def _encoded(storage: Any, start: int, count: int) -> str:
    """Bytes of a storage in base64. Raises ValueError."""
    if not count:
        return ""
    torch = sys.modules["torch"]
    flat = torch.empty(0, dtype=torch.uint8, device=storage.device)
    flat.set_(storage, start, (count,), (1,))
    found = devices.fetch(flat, lambda: flat)
    if isinstance(found, Unavailable):
        raise ValueError(found.reason)
    return base64.b64encode(ctypes.string_at(found.data_ptr(), count)).decode("ascii")
