"""Checkpoints that are converted to another dtype are kept for the next run: `"keepWeights"`.

To load a checkpoint on the CPU as it is costs nothing: transformers maps the file. To load it as
another dtype, bfloat16 as float32 say, converts every weight in each run: 7 s for 2 GB, where what
was kept is mapped in 0.6 s (on two cores). So the converted tensors of a file are kept in a *pack*,
a file in memory (`/dev/shm`) that programs map privately: what one writes no other sees.

Each tensor has a storage of its own, as a converted one has: with views of one buffer all would
share a version counter, and `save_pretrained` would take them for tied. Unlike a converted one it
can't be resized. A pack is for one state of one file (path, inode, time, size) and one dtype.

Asked is where transformers converts, `core_model_loading._materialize_copy`: a tensor that knows
where it is from, of a class of its own, would be refused by `torch.nn.Parameter`.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..wire import pack
from .imports import when_imported

_ALIGNMENT = 64
#: What safetensors calls the dtypes that torch calls otherwise, and the bytes of an element.
_DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
}
#: Packs together; less where `/dev/shm` has no room.
MOST_BYTES = int(os.environ.get("TENSORPOINT_WEIGHTS_MIB") or 16384) << 20


class Weights:
    """What is kept, for one process. Called on the threads that load."""

    def __init__(self, on_fault: Callable[[str, Exception], None]) -> None:
        self._on_fault = on_fault
        self._lock = threading.Lock()
        self._packs: dict[str, _Pack | None] = {}
        self._building: dict[str, _Builder | None] = {}
        #: Models that are being loaded, and whether one of them failed.
        self._loads, self._failed = 0, False
        self._undo: list[tuple[Any, str, Any]] = []
        self._wanted = self._waits = False

    def want(self, on: bool) -> None:
        """Keep weights from now on, once transformers is imported, or no longer."""
        self._wanted = on
        if not on:
            self.remove()
        elif self._waits:
            self._install()
        else:
            self._waits = True
            when_imported("transformers.modeling_utils", self._install)

    def after_fork(self) -> None:
        """What other threads held stays so in a child, and what is being made is the parent's."""
        self._lock = threading.Lock()
        self._building.clear()
        self._loads, self._failed = 0, False

    def _install(self) -> None:
        """Be asked by transformers, if it has been imported."""
        loading = sys.modules.get("transformers.core_model_loading")
        modeling = sys.modules.get("transformers.modeling_utils")
        names = (
            (modeling, "safe_open", self._opening),
            (loading, "_materialize_copy", self._copying),
            (modeling, "convert_and_load_state_dict_in_model", self._finishing),
        )
        missing = any(not hasattr(module, name) for module, name, _ in names)
        with self._lock:
            if self._undo or missing or not self._wanted or sys.platform != "linux":
                return  # another version of it loads by itself
            for module, name, wrap in names:
                original = getattr(module, name)
                self._undo.append((module, name, original))
                setattr(module, name, wrap(original))

    def remove(self) -> None:
        """Leave transformers as it was."""
        with self._lock:
            while self._undo:
                setattr(*self._undo.pop())

    # In transformers -----------------------------------------------------------------------------

    @staticmethod
    def _opening(original: Any) -> Any:
        def safe_open(filename: Any, *arguments: Any, **options: Any) -> Any:
            return _File(os.fspath(filename), original(filename, *arguments, **options))

        return safe_open

    def _copying(self, original: Any) -> Any:
        def materialize(tensor: Any, device: Any = None, dtype: Any = None) -> Any:
            if type(tensor) is not _Slice:
                return original(tensor, device, dtype)
            kept = self._safely(tensor, device, dtype, self._find)
            if kept is not None:
                return kept
            made = original(tensor.slice, device, dtype)
            self._safely(tensor, device, dtype, self._keep, made)
            return made

        return materialize

    def _finishing(self, original: Any) -> Any:
        def load(*arguments: Any, **options: Any) -> Any:
            loaded = False
            with self._lock:
                self._loads += 1
            try:
                result = original(*arguments, **options)
                loaded = True
            finally:
                self._finish(loaded)
            return result

        return load

    def _safely(self, tensor: _Slice, device: Any, dtype: Any, act: Any, *more: Any) -> Any:
        """Act if this is a conversion on the CPU; a fault of ours is told, and they load on."""
        try:
            if dtype is None or not dtype.is_floating_point or str(device or "cpu") != "cpu":
                return None
            if not tensor.is_floating or tensor.dtype == str(dtype):
                return None
            return act(tensor, dtype, *more)
        except Exception as error:
            self.remove()
            self._on_fault("keeping weights", error)
            return None

    # Packs ---------------------------------------------------------------------------------------

    def _find(self, tensor: _Slice, dtype: Any) -> Any:
        path = _pack_path(tensor.path, str(dtype))
        with self._lock:
            if path not in self._packs:
                self._packs[path] = _Pack.open(path)
            found = self._packs[path]
        return None if found is None else found.tensor(tensor.name, dtype)

    def _keep(self, tensor: _Slice, dtype: Any, made: Any) -> None:
        path = _pack_path(tensor.path, str(dtype))
        with self._lock:
            if self._packs.get(path) is not None:
                return  # one that lacks some: it was made for a part of the model
            if not self._loads:
                return  # a thread that goes on after its load has failed
            if path not in self._building:
                size = os.stat(tensor.path).st_size * dtype.itemsize // tensor.itemsize
                self._building[path] = _Builder.begin(path, tensor.path, str(dtype), size)
            builder = self._building[path]
        if builder is not None and made.numel() and made.is_contiguous():
            builder.add(tensor.name, made)

    def _finish(self, loaded: bool) -> None:
        """What was kept is there for others, once all that was being loaded is loaded."""
        with self._lock:
            self._loads = max(self._loads - 1, 0)
            self._failed |= not loaded
            if self._loads:
                return
            loaded, self._failed = not self._failed, False
            built = [builder for builder in self._building.values() if builder is not None]
            self._building.clear()
            self._packs.clear()
        for builder in built:
            builder.finish(loaded)


class _File:
    """An open checkpoint whose slices know where they are from."""

    def __init__(self, path: str, file: Any) -> None:
        self._path, self._file = path, file

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._path, name, self._file.get_slice(name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        self._file.__enter__()
        return self

    def __exit__(self, *error: object) -> Any:
        return self._file.__exit__(*error)


class _Slice:
    """A tensor in a checkpoint that isn't loaded yet."""

    def __init__(self, path: str, name: str, slice: Any) -> None:
        self.path, self.name, self.slice = path, name, slice
        known = _DTYPES.get(slice.get_dtype())
        self.is_floating = known is not None
        self.dtype, self.itemsize = (f"torch.{known[0]}", known[1]) if known else ("", 1)

    def __getitem__(self, index: Any) -> Any:
        return self.slice[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.slice, name)


class _Pack:
    """A pack that is there: data, an index of it as JSON, and how long that is."""

    def __init__(self, map: mmap.mmap, index: dict[str, Any]) -> None:
        self._map, self._tensors = map, index["tensors"]

    @classmethod
    def open(cls, path: str) -> _Pack | None:
        """None if there is none, or it isn't one."""
        try:
            with open(path, "rb") as stream:
                if os.fstat(stream.fileno()).st_uid != os.getuid():
                    return None  # anybody may make a folder in /dev/shm, before us
                map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError):
            return None
        index = pack.index_of(map)
        if index is None:
            return None
        with suppress(OSError):
            os.utime(path)  # the one that is used is the last to go
        return cls(map, index)

    def tensor(self, name: str, dtype: Any) -> Any:
        """Mapped, not read; None if it isn't in it."""
        torch = sys.modules["torch"]
        found = self._tensors.get(name)
        if found is None:
            return None
        offset, shape, count = found
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=offset).view(shape)


class _Builder:
    """A pack that is being made, under a name that nobody looks for."""

    def __init__(self, path: str, new: str, number: int, about: dict[str, Any]) -> None:
        self._path, self._new, self._number, self._about = path, new, number, about
        #: Guards what follows; notified when a thread has written.
        self._turn = threading.Condition()
        self._tensors: dict[str, tuple[int, list[int], int]] = {}
        self._end = self._writing = 0
        self._failed = self._closed = False

    @classmethod
    def begin(cls, path: str, source: str, dtype: str, size: int) -> _Builder | None:
        """None where there is no room for it."""
        try:
            os.makedirs(pack.folder(), mode=0o700, exist_ok=True)
            status = os.lstat(pack.folder())
            if status.st_uid != os.getuid() or status.st_mode & 0o077 or not _make_room(size):
                return None
            new = f"{path}.{os.urandom(6).hex()}"
            number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            _lock(number)
        except OSError:
            return None
        return cls(path, new, number, {"source": source, "dtype": dtype})

    def add(self, name: str, tensor: Any) -> None:
        """Copy a tensor to its place; on several threads."""
        count = tensor.numel()
        size = count * tensor.element_size()
        with self._turn:
            if self._closed:
                return
            start = self._end
            self._end = -(-(start + size) // _ALIGNMENT) * _ALIGNMENT
            self._writing += 1
        data = memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")
        written = False
        try:
            self._write(data, start)
            written = True
        except OSError:
            pass  # no room: they have their tensor
        finally:
            with self._turn:
                self._writing -= 1
                self._turn.notify_all()
                if written:
                    self._tensors[name] = (start, list(tensor.shape), count)
                else:
                    self._failed = True

    def finish(self, loaded: bool) -> None:
        """Give it its name, or leave nothing of it if the model isn't `loaded`.

        transformers doesn't wait for its threads when a load fails: one that still writes must not
        do so into what gets the number of our file next.
        """
        with self._turn:
            self._closed = True
            self._turn.wait_for(lambda: not self._writing)
        try:
            if self._failed or not self._tensors or not loaded:
                raise OSError
            self._write(memoryview(pack.tail({**self._about, "tensors": self._tensors})), self._end)
            os.replace(self._new, self._path)
        except OSError:
            with suppress(OSError):
                os.unlink(self._new)
        finally:
            os.close(self._number)

    def _write(self, data: memoryview, start: int) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._number, data[done:], start + done)


def _pack_path(source: str, dtype: str) -> str:
    """The pack of a file as it is now."""
    real = os.path.realpath(source)
    status = os.stat(real)
    key = [real, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size, dtype]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]
    return f"{pack.folder()}/{name}.pack"


def _is_abandoned(path: str) -> bool:
    """Whether the maker of a pack has ended: its lock has gone with it, also in a container."""
    with open(path, "rb") as stream:
        return _lock(stream.fileno())


def _lock(number: int) -> bool:
    """Hold a file until it is closed; False if another process does."""
    import fcntl  # not on Windows, where the rest of this module is imported as well

    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_room(size: int) -> bool:
    """Let packs go that were used longest ago, until there is room for one more."""
    found: list[tuple[float, int, str]] = []
    for entry in os.scandir(pack.folder()):
        with suppress(OSError):
            if entry.name.endswith(".pack"):
                status = entry.stat()
                found.append((status.st_mtime, status.st_size, entry.path))
            elif _is_abandoned(entry.path):
                os.unlink(entry.path)
    found.sort(reverse=True)
    disk = os.statvfs(pack.folder())
    free = disk.f_bavail * disk.f_frsize
    while found and (sum(each[1] for each in found) + size > MOST_BYTES or 2 * size > free):
        _, freed, path = found.pop()
        with suppress(OSError):
            os.unlink(path)
            free += freed
    return sum(each[1] for each in found) + size <= MOST_BYTES and 2 * size <= free
