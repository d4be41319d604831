"""`readMemory`: bytes of a tensor's storage, from where the tensor begins."""

from __future__ import annotations

import base64
import ctypes
import sys
from typing import Any

from ..tensors import unseen
from . import devices
from .devices import Unavailable
from .plain import call

#: Of one request; a client that wants more asks again.
_MOST = 1 << 20


@unseen
def read_memory(tensor: Any, offset: int, count: int) -> dict[str, Any]:
    """The body of the answer: `data` in base64, and how many bytes there are none of."""
    reason = devices.why_not(tensor)
    if reason is not None:
        raise ValueError(reason)
    try:
        storage = call(tensor, "untyped_storage")
        size = storage.nbytes()
        start = call(tensor, "storage_offset") * call(tensor, "element_size") + offset
        address = storage.data_ptr()
    except RuntimeError as error:
        raise ValueError(f"it has no memory of its own: {error}") from None
    wanted = min(count, _MOST)
    first, last = max(0, start), min(size, start + wanted)
    body: dict[str, Any] = {"address": hex(address + max(0, min(start, size)))}
    if start < 0 or last <= first or not address:
        return {**body, "unreadableBytes": count}
    if not wanted:
        return {**body, "data": ""}
    torch = sys.modules["torch"]
    flat = torch.empty(0, dtype=torch.uint8, device=storage.device)
    flat.set_(storage, first, (last - first,), (1,))
    found = devices.fetch(flat, lambda: flat)
    if isinstance(found, Unavailable):
        raise ValueError(found.reason)
    data = ctypes.string_at(found.data_ptr(), last - first)
    body["data"] = base64.b64encode(data).decode("ascii")
    missing = wanted - (last - first)
    return {**body, "unreadableBytes": missing} if missing else body
