"""Memory of a GPU that another process can open, by CUDA's driver (CUDA IPC).

By the driver's own functions and not by torch: the broker has no torch, and what torch shares it
counts in files and events of its own, which a program that is killed never gives back. The driver
is the same for every version of torch, and its functions keep their names.

Nothing here starts CUDA in a program: it is called once the program's torch has. The context is
the device's primary one, which torch uses as well; it is made current for each call and then no
longer, so that a thread finds what it had.

None of this has run on a GPU yet. It is written by the reference of the driver's interface, and
what comes of it is checked: whatever a program opens is compared with the file's checksums.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from contextlib import contextmanager
from ctypes import POINTER, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from uuid import UUID

from .device_memory import DeviceError


class _Uuid(ctypes.Structure):
    _fields_ = [("bytes", c_char * 16)]


class _Handle(ctypes.Structure):
    """Passed by value."""

    _fields_ = [("reserved", c_char * 64)]


_FUNCTIONS: dict[str, tuple[object, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetUuid_v2": (POINTER(_Uuid), c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuCtxSynchronize": (),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuStreamSynchronize": (c_void_p,),
    "cuIpcGetMemHandle": (POINTER(_Handle), c_uint64),
    "cuIpcOpenMemHandle_v2": (POINTER(c_uint64), _Handle, c_uint),
    "cuIpcCloseMemHandle": (c_uint64,),
}
_LAZY_ENABLE_PEER_ACCESS = 1
#: What the driver shares is in pieces of this size: with less, others' memory would be in ours.
_PIECE = 1 << 21


class _Driver:
    """The library, its functions declared."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
            for name, parameters in _FUNCTIONS.items():
                getattr(self._library, name).argtypes = parameters
        except (OSError, AttributeError) as error:
            raise DeviceError(f"no driver of CUDA that can share memory: {error}") from None
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver. Raises DeviceError."""
        status: int = getattr(self._library, name)(*arguments)
        if status:
            text = c_char_p()
            self._library.cuGetErrorString(status, ctypes.byref(text))
            said = (text.value or b"").decode("utf-8", "replace")
            raise DeviceError(f"{name}: {said or 'error'} ({status})")

    def device(self, number: int) -> tuple[int, str]:
        """The device that has this number in this process, and its UUID."""
        device, uuid = c_int(), _Uuid()
        self.call("cuDeviceGet", ctypes.byref(device), number)
        self.call("cuDeviceGetUuid_v2", ctypes.byref(uuid), device)
        return device.value, f"GPU-{UUID(bytes=bytes(uuid))}"


def uuid_of(number: int) -> str:
    """The UUID of a GPU by its number in this process, in which CUDA runs. Raises DeviceError."""
    return _Driver().device(number)[1]


class Cuda:
    """The memory of the GPU with this UUID. Raises DeviceError in all functions."""

    def __init__(self, uuid: str) -> None:
        self._driver = _Driver()
        count = c_int()
        self._driver.call("cuDeviceGetCount", ctypes.byref(count))
        devices = [self._driver.device(number) for number in range(count.value)]
        found = [device for device, its_uuid in devices if its_uuid == uuid]
        if not found:
            raise DeviceError("the resident process does not see this GPU")
        self._context = c_void_p()
        self._driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), found[0])

    def room(self) -> tuple[int, int]:
        free, total = c_size_t(), c_size_t()
        with self._current():
            self._driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size: int) -> int:
        address = c_uint64()
        with self._current():
            whole = -(-size // _PIECE) * _PIECE
            self._driver.call("cuMemAlloc_v2", ctypes.byref(address), whole)
        return address.value

    def write(self, address: int, data: bytearray, size: int) -> None:
        with self._current():
            source = (c_char * size).from_buffer(data)
            self._driver.call("cuMemcpyHtoD_v2", address, ctypes.addressof(source), size)
            self._driver.call("cuCtxSynchronize")  # it may return when it has read

    def share(self, address: int) -> str:
        handle = _Handle()
        with self._current():
            self._driver.call("cuIpcGetMemHandle", ctypes.byref(handle), address)
        return bytes(handle).hex()

    def free(self, address: int) -> None:
        with self._current():
            self._driver.call("cuMemFree_v2", address)

    def open(self, handle: str, size: int) -> int:
        address = c_uint64()
        shared = _Handle.from_buffer_copy(bytes.fromhex(handle))
        with self._current():
            self._driver.call(
                "cuIpcOpenMemHandle_v2", ctypes.byref(address), shared, _LAZY_ENABLE_PEER_ACCESS
            )
        return address.value

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        with self._current():
            self._driver.call("cuMemcpyDtoDAsync_v2", target, source, size, stream)
            self._driver.call("cuStreamSynchronize", stream)

    def close(self, address: int) -> None:
        with self._current():
            self._driver.call("cuIpcCloseMemHandle", address)

    @contextmanager
    def _current(self) -> Generator[None, None, None]:
        self._driver.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._driver.call("cuCtxPopCurrent_v2", ctypes.byref(c_void_p()))
