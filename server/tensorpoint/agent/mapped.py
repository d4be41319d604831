"""Which part of which file a piece of this process's memory is (Linux).

A checkpoint that is mapped is a part of its file until somebody writes to it: then the kernel gives
the process a page of its own, whoever writes and however, through `.data` or a raw pointer as well.
Which pages these are it says in `/proc/self/pagemap`. So nothing has to be hooked where tensors are
loaded, and nothing that was changed is taken for what is in the file.
"""

from __future__ import annotations

import bisect
import mmap
import os
import sys

#: In the highest byte of the eight that there are of a page.
_PRESENT, _SWAPPED, _OF_FILE = 0x80, 0x40, 0x20
_HIGHEST = 7 if sys.byteorder == "little" else 0
#: Smaller regions are libraries' own.
_LEAST = 1 << 16


class Maps:
    """The files that are mapped, as far as they have been looked up."""

    def __init__(self) -> None:
        #: By their start: start, end, place in the file, path.
        self._regions: list[tuple[int, int, int, str]] = []

    def find(self, address: int, size: int) -> tuple[str, int] | None:
        """The file and the place in it of this memory; None if it is none's, or written to."""
        if _is_written(address, 1):
            return None  # as what a program computes: its maps, a millisecond, need not be read
        region = self._region(address, size)
        if region is None or not _is_there(region):
            self._read()
            region = self._region(address, size)
        if region is None or _is_written(address, size):
            return None
        start, _, place, path = region
        return path, place + address - start

    def _region(self, address: int, size: int) -> tuple[int, int, int, str] | None:
        number = bisect.bisect_right(self._regions, (address, 1 << 64)) - 1
        if number < 0:
            return None
        region = self._regions[number]
        return region if address + size <= region[1] else None

    def _read(self) -> None:
        self._regions = []
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as stream:
            for line in stream:
                ends, access, place, _, _, *path = line.rstrip("\n").split(maxsplit=5)
                start, end = (int(text, 16) for text in ends.split("-"))
                # A file that has no name any longer is no place that a next run could look at.
                named = path and path[0].startswith("/") and not path[0].endswith(" (deleted)")
                if named and access[3] == "p" and end - start >= _LEAST:
                    self._regions.append((start, end, int(place, 16), path[0]))


def _is_there(region: tuple[int, int, int, str]) -> bool:
    """Whether it is mapped still: another file may be at that address now."""
    start, end, _, path = region
    try:
        return os.readlink(f"/proc/self/map_files/{start:x}-{end:x}") == path
    except OSError:
        return False


def _is_written(address: int, size: int) -> bool:
    """Whether a page of it is the process's own, in memory or swapped out."""
    first, last = address // mmap.PAGESIZE, (address + size - 1) // mmap.PAGESIZE
    number = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(number, 8 * (last - first + 1), 8 * first)
    finally:
        os.close(number)
    kinds = set(data[_HIGHEST::8])
    return any(kind & _SWAPPED or kind & (_PRESENT | _OF_FILE) == _PRESENT for kind in kinds)
