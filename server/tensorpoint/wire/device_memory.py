"""Memory of a device that another process can open: CUDA's, and for the CPU shared memory.

The broker (`resident.broker`) allocates, writes and shares it; a program opens it and copies from
it into memory of its own. Both find it by the name of the device, which is the same in all
processes: `CUDA_VISIBLE_DEVICES` may give a GPU another number in each, its UUID stays.

For the CPU it is a file without a name that goes with the broker, as CUDA's memory does. It keeps
nothing that is worth keeping, but all that isn't CUDA runs and is tested with it on any machine.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Protocol

#: The kinds of devices, as torch calls them.
CPU, CUDA = "cpu", "cuda"


class DeviceError(Exception):
    """The device refused; the text says what."""


class DeviceMemory(Protocol):
    """Memory of one device. Addresses are those of the device, in this process."""

    def room(self) -> tuple[int, int]:
        """What is free, and all there is, in bytes."""
        ...

    def allocate(self, size: int) -> int:
        """New memory, to be shared as a whole."""
        ...

    def write(self, address: int, data: bytearray, size: int) -> None:
        """Have these bytes in the device's memory when this returns."""
        ...

    def share(self, address: int) -> str:
        """What another process opens allocated memory by."""
        ...

    def free(self, address: int) -> None:
        """Give allocated memory back: nobody may have it open."""
        ...

    def open(self, handle: str, size: int) -> int:
        """The address here of what another process has shared."""
        ...

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy within the device: after what the stream has been given, before this returns."""
        ...

    def close(self, address: int) -> None:
        """Let go of what was opened."""
        ...


def memory_of(device: str) -> DeviceMemory:
    """The memory of a device, by its name: `cuda:UUID` or `cpu:memory`. Raises DeviceError."""
    kind, _, name = device.partition(":")
    if kind == CUDA:
        from .cuda import Cuda

        return Cuda(name)
    if kind == CPU:
        return SharedMemory()
    raise DeviceError(f"there is no memory of {kind} to share")


class SharedMemory:
    """The CPU's."""

    def __init__(self) -> None:
        #: By address: the map, what holds it in place, and the number of its file.
        self._maps: dict[int, tuple[mmap.mmap, ctypes.Array[ctypes.c_char], int]] = {}

    def room(self) -> tuple[int, int]:
        with open("/proc/meminfo", encoding="ascii") as stream:
            found = {line.split(":")[0]: int(line.split()[1]) << 10 for line in stream}
        return found["MemAvailable"], found["MemTotal"]

    def allocate(self, size: int) -> int:
        number = os.memfd_create("tensorpoint-weights", os.MFD_CLOEXEC)
        os.truncate(number, size)
        return self._map(number, size)

    def write(self, address: int, data: bytearray, size: int) -> None:
        ctypes.memmove(address, (ctypes.c_char * size).from_buffer(data), size)

    def share(self, address: int) -> str:
        return f"/proc/{os.getpid()}/fd/{self._maps[address][2]}"

    def free(self, address: int) -> None:
        map, held, number = self._maps.pop(address)
        del held
        map.close()
        os.close(number)

    def open(self, handle: str, size: int) -> int:
        try:
            number = os.open(handle, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise DeviceError(f"{handle}: {error.strerror}") from None
        if os.fstat(number).st_size < size:  # whoever has that number now, it isn't the broker
            os.close(number)
            raise DeviceError(f"{handle} is something else")
        return self._map(number, size)

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        ctypes.memmove(target, source, size)

    def close(self, address: int) -> None:
        self.free(address)

    def _map(self, number: int, size: int) -> int:
        map = mmap.mmap(number, size)
        held = (ctypes.c_char * size).from_buffer(map)
        address = ctypes.addressof(held)
        self._maps[address] = map, held, number
        return address
