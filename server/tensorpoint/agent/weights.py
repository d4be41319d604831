"""Checkpoints that are converted to another dtype are kept for the next run: `"keepWeights"`.

To load a checkpoint on the CPU as it is costs nothing, as safetensors maps the file. To have it in
another dtype, bfloat16 as float32 say, converts every weight in each run: 7 s for 2 GB, where what
was kept is mapped in 0.6 s (on two cores). So what a conversion makes of a mapped tensor is kept,
in a file in memory (`/dev/shm`) that programs map privately: what one writes no other sees.

Asked is where it is converted, `Tensor.to` and its like, and `mapped` knows which part of which
file a tensor is. So it doesn't matter what has loaded it: transformers, diffusers, accelerate,
`safetensors.torch.load_file`, `torch.load(mmap=True)`. A class of tensors that knows where it is
from would be refused by `torch.nn.Parameter`; and it would not notice what is written to `.data`.

`torch.load` without `mmap` reads and copies each time, a second for 400 MB. What it has read is
kept as well, a copy of the file that is mapped in its place from then on. The file itself is not: a
program that saves over the checkpoint that it has loaded would read the new bytes, or die.

What goes to a GPU comes from there, where `device_weights` finds it: it is asked here as well, as
the way from a tensor to its file is the same.

A kept tensor has a storage of its own, as a converted one has: with views of one buffer all would
share a version counter, and be saved as tied. Unlike a converted one it can't be resized.
"""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..wire import pack
from .device_loading import goes_to, replacements, replacements_of_files
from .device_weights import DeviceWeights
from .imports import when_imported
from .mapped import Maps

#: Packs together; less where `/dev/shm` has no room.
MOST_BYTES = int(os.environ.get("TENSORPOINT_WEIGHTS_MIB") or 16384) << 20
#: Smaller tensors are converted faster than a file is opened.
LEAST_BYTES = 1 << 16
_WORDS = {"float": "float32", "half": "float16", "bfloat16": "bfloat16", "double": "float64"}
#: The file of a pack that is a whole checkpoint.
_WHOLE = "whole"
#: How long it is believed what all packs together have.
_BELIEVED_S = 1.0


class Weights:
    """What is kept, for one process. Called on the threads that load."""

    def __init__(
        self,
        on_fault: Callable[[str, Exception], None],
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._on_fault = on_fault
        self._devices = DeviceWeights(tell)
        self._lock = threading.Lock()
        self._maps = Maps()
        self._room = _Room()
        self._undo: list[Callable[[], None]] = []
        #: Whether converted ones are kept, and the folder of the host that keeps those on devices.
        self._wanted: tuple[bool, str] = (False, "")
        self._waits = self._is_torch_there = False
        self._waits_for_files = self._are_files_there = False

    def want(self, on: bool, host: str = "") -> None:
        """Keep weights from now on, once torch is imported, or no longer."""
        if (on, host) != self._wanted:
            self.remove()
        self._wanted = on, host
        self._devices.want(host)
        if not on and not host:
            return
        if host and not self._waits_for_files:
            self._waits_for_files = True
            when_imported("safetensors", self._on_safetensors)
        if self._is_torch_there:
            self._install()
        elif not self._waits:
            self._waits = True
            when_imported("torch", self._on_torch)

    def after_fork(self) -> None:
        """What other threads held stays so in a child."""
        self._lock = threading.Lock()
        self._maps, self._room = Maps(), _Room()
        self._devices.after_fork()

    def _on_torch(self) -> None:
        self._is_torch_there = True
        self._install()

    def _on_safetensors(self) -> None:
        with self._lock:
            self._are_files_there = True
            if self._undo and self._wanted[1]:
                self._replace_files()

    def _replace_files(self) -> None:
        for owner, name, by in replacements_of_files(sys.modules["safetensors"]):
            self._replace(owner, name, by)

    def _install(self) -> None:
        torch: Any = sys.modules["torch"]
        with self._lock:
            on, host = self._wanted
            if self._undo or not (on or host) or sys.platform != "linux":
                return
            self._replace(torch.Tensor, "to", self._to(torch.Tensor.to, torch))
            self._replace(torch, "load", self._load(torch.load, torch.serialization))
            if host:
                for owner, name, by in replacements(torch, self._devices.serves, self._take):
                    self._replace(owner, name, by)
                if self._are_files_there:
                    self._replace_files()
            for word, name in _WORDS.items() if on else ():
                wrapped = self._word(getattr(torch.Tensor, word), getattr(torch, name))
                self._replace(torch.Tensor, word, wrapped)

    def _replace(self, owner: Any, name: str, by: Any) -> None:
        own, original = name in vars(owner), getattr(owner, name)
        self._undo.append(lambda: setattr(owner, name, original) if own else delattr(owner, name))
        setattr(owner, name, by)

    def remove(self) -> None:
        """Leave torch as it was."""
        with self._lock:
            while self._undo:
                self._undo.pop()()

    # In torch ------------------------------------------------------------------------------------

    def _to(self, original: Any, torch: Any) -> Any:
        parse, preserving = torch._C._nn._parse_to, torch.preserve_format

        @functools.wraps(original)
        def to(tensor: Any, *arguments: Any, **options: Any) -> Any:
            if _is_small(tensor) or not self._safely(lambda: _is_plain(tensor)):
                return original(tensor, *arguments, **options)

            def convert() -> Any:
                return original(tensor, *arguments, **options)

            try:
                device, dtype, _, form = parse(*arguments, **options)
            except (TypeError, RuntimeError):  # which `to` says better, or does all the same
                return convert()
            if form not in (None, preserving):
                return convert()
            if device is not None and self._devices.serves(device):
                found = self._take(tensor, device, dtype)
                return convert() if found is None else found
            if str(device or "cpu") != "cpu":
                return convert()
            return self._convert(tensor, dtype, convert)

        return to

    def _word(self, original: Any, dtype: Any) -> Any:
        @functools.wraps(original)
        def word(tensor: Any, *arguments: Any, **options: Any) -> Any:
            if arguments or options or _is_small(tensor):
                return original(tensor, *arguments, **options)
            if not self._safely(lambda: _is_plain(tensor)):
                return original(tensor)
            return self._convert(tensor, dtype, lambda: original(tensor))

        return word

    def _load(self, original: Any, serialization: Any) -> Any:
        @functools.wraps(original)
        def load(f: Any, *arguments: Any, **options: Any) -> Any:
            whole = None
            private = serialization.get_default_mmap_options() == mmap.MAP_PRIVATE
            if isinstance(f, (str, os.PathLike)) and private and not options.get("mmap"):
                where = arguments[0] if arguments else options.get("map_location")
                is_open = options.get("mmap") is None
                if is_open and goes_to(where, self._devices.means) and _is_zip(os.fspath(f)):
                    # All of it is copied there: the file isn't mapped any longer than that takes.
                    return original(f, *arguments, **{**options, "mmap": True})
                if not self._wanted[0]:
                    return original(f, *arguments, **options)
                whole = self._safely(lambda: _whole(os.fspath(f), self._room))
            if whole is not None and whole.is_kept:
                # It may have gone just now; any other error is told of the file that they named.
                with suppress(Exception):
                    return original(whole.path, *arguments, **{**options, "mmap": True})
            loaded = original(f, *arguments, **options)
            if whole is not None and not whole.is_kept:
                self._safely(whole.copy)
            return loaded

        return load

    def _take(self, tensor: Any, device: Any, dtype: Any) -> Any:
        """A tensor of a checkpoint on a device, from what is kept there; else None."""
        return self._safely(lambda: self._taken(tensor, device, dtype))

    def _taken(self, tensor: Any, device: Any, dtype: Any) -> Any:
        found = self._source(tensor) if not _is_small(tensor) and _is_plain(tensor) else None
        return None if found is None else self._devices.take(*found, tensor, device, dtype)

    def _convert(self, tensor: Any, dtype: Any, convert: Callable[[], Any]) -> Any:
        """What was kept of this conversion, else what it makes, which is kept."""
        floats = dtype is not None and dtype.is_floating_point and tensor.is_floating_point()
        if not self._wanted[0] or not floats or dtype == tensor.dtype:
            return convert()
        kept = self._safely(lambda: self._find(tensor, dtype))
        if kept is None:
            return convert()
        if kept.is_kept:
            found = self._safely(lambda: kept.tensor(tensor, dtype))
            if found is not None:
                return found
        made = convert()
        self._safely(lambda: kept.keep(made))
        return made

    def _source(self, tensor: Any) -> tuple[str, int] | None:
        """The checkpoint that a tensor is a part of, and where in it."""
        with self._lock:
            found = self._maps.find(tensor.data_ptr(), tensor.nbytes)
        if found is None:
            return None
        source, place = found
        if source.startswith(f"{pack.folder()}/"):
            source = pack.original(source)  # of a copy of a checkpoint, all is where it was
        return (source, place) if source else None

    def _find(self, tensor: Any, dtype: Any) -> _Kept | None:
        found = self._source(tensor)
        if found is None:
            return None
        source, place = found
        name = f"{place}-{tensor.nbytes}-{tensor.dtype}"
        return _Kept.of(source, name, str(dtype), self._room)

    def _safely(self, act: Callable[[], Any]) -> Any:
        """A fault of ours is told, and they load on as ever."""
        try:
            return act()
        except Exception as error:
            self.remove()
            self._on_fault("keeping weights", error)
            return None


def _is_small(tensor: Any) -> bool:
    """Whether nothing more need be asked, which is so for most. Other classes aren't asked."""
    kind = type(tensor).__name__
    return kind not in ("Tensor", "Parameter") or tensor.numel() * 8 < LEAST_BYTES


def _is_plain(tensor: Any) -> bool:
    """Whether it may be a tensor of a checkpoint: all others are none of our business."""
    torch: Any = sys.modules["torch"]
    return (
        (type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter)
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.nbytes >= LEAST_BYTES
        and tensor.is_contiguous()
        and not (tensor.requires_grad and torch.is_grad_enabled())
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not torch._C._len_torch_function_stack()
        and not torch._C._len_torch_dispatch_stack()
    )


class _Kept:
    """A file of a pack, there or not."""

    def __init__(self, source: str, folder: str, name: str, dtype: str, room: _Room) -> None:
        self._source, self._folder, self._dtype = source, folder, dtype
        self._room = room
        self.path = f"{folder}/{name}"
        #: Only of this user: anybody may make a folder in /dev/shm, before us.
        self.is_kept = _is_ours(folder) and os.path.exists(self.path)
        if self.is_kept:
            with suppress(OSError):
                os.utime(folder)  # the one that is used is the last to go

    @classmethod
    def of(cls, source: str, name: str, dtype: str, room: _Room) -> _Kept | None:
        """None if the file has gone."""
        try:
            return cls(source, pack.path_of(source, dtype), name, dtype, room)
        except OSError:
            return None  # it has been removed since it was mapped

    def tensor(self, like: Any, dtype: Any) -> Any:
        """Mapped, not read; None if it has gone meanwhile."""
        torch: Any = sys.modules["torch"]
        try:
            with open(self.path, "rb") as stream:
                map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError):
            map = b""
        if len(map) != like.numel() * dtype.itemsize:
            with suppress(OSError):
                os.unlink(self.path)  # it isn't ours
            return None
        return torch.frombuffer(map, dtype=dtype, count=like.numel()).view(like.shape)

    def keep(self, made: Any) -> None:
        """Keep what was made."""
        if made.is_contiguous() and made.device.type == "cpu":
            data = memoryview((ctypes.c_char * made.nbytes).from_address(made.data_ptr()))
            self._write(lambda number: _write_all(number, data.cast("B")), made.nbytes)

    def copy(self) -> None:
        """Keep the file as it is."""
        with open(self._source, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            self._write(lambda number: _copy_all(stream.fileno(), number, size), size)

    def _write(self, write: Callable[[int], None], size: int) -> None:
        """Make the file. It has no name until it is whole, so that nothing is left of a crash."""
        try:
            if not self._room.take(self._folder, size):
                return
            self._begin_pack()
            number = os.open(self._folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                write(number)
                if pack.path_of(self._source, self._dtype) == self._folder:  # it hasn't changed
                    # With a folder, which it doesn't need, Python calls what follows links.
                    os.link(f"/proc/self/fd/{number}", self.path, src_dir_fd=number)
            finally:
                os.close(number)
        except OSError:
            pass  # no room, or another process has just done the same: they have their tensor

    def _begin_pack(self) -> None:
        os.makedirs(pack.folder(), mode=0o700, exist_ok=True)
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        if not _is_ours(self._folder):
            raise OSError("it is somebody else's")
        about = f"{self._folder}/{pack.ABOUT}"
        if not os.path.exists(about):
            own = f"{about}.{os.getpid()}-{threading.get_ident()}"  # several threads load
            with open(own, "w", encoding="utf-8") as stream:
                json.dump({"source": self._source, "dtype": self._dtype}, stream)
            os.replace(own, about)


def _whole(source: str, room: _Room) -> _Kept | None:
    """The copy of a file; None if `torch.load` can't map it: the format before torch 1.6."""
    return _Kept.of(os.path.realpath(source), _WHOLE, "", room) if _is_zip(source) else None


def _is_zip(source: str) -> bool:
    try:
        with open(source, "rb") as stream:
            return stream.read(4) == b"PK\3\4" and os.fstat(stream.fileno()).st_size >= LEAST_BYTES
    except OSError:
        return False


def _write_all(number: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += os.write(number, data[done:])


def _copy_all(source: int, target: int, size: int) -> None:
    done = 0
    while done < size:
        count = os.sendfile(target, source, done, size - done)
        if not count:
            raise OSError("it has become shorter")
        done += count


def _is_ours(folder: str) -> bool:
    """Whether a pack is there, and no other user can write to it."""
    try:
        found = [os.lstat(path) for path in (os.path.dirname(folder), folder)]
    except OSError:
        return False
    return all(each.st_uid == os.getuid() and not each.st_mode & 0o077 for each in found)


class _Room:
    """What packs may take."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held, self._counted = 0, 0.0

    def take(self, mine: str, size: int) -> bool:
        """Whether there is room for so much more in a pack, others having gone if need be."""
        with self._lock:
            return self._take(mine, size)

    def _take(self, mine: str, size: int) -> bool:
        if time.monotonic() - self._counted > _BELIEVED_S or not self._fits(size):
            others = sorted(pack.packs(), key=lambda each: each.used, reverse=True)
            self._held = sum(each.bytes for each in others)
            self._counted = time.monotonic()
            others = [each for each in others if each.path != mine]
            while others and not self._fits(size):
                oldest = others.pop()
                shutil.rmtree(oldest.path, ignore_errors=True)
                self._held -= oldest.bytes
        if not self._fits(size):
            return False
        self._held += size
        return True

    def _fits(self, size: int) -> bool:
        where = pack.folder()
        disk = os.statvfs(where if os.path.isdir(where) else os.path.dirname(where))
        free = disk.f_bavail * disk.f_frsize
        return self._held + size <= MOST_BYTES and 2 * size <= free
