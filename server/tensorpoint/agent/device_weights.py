"""Weights that stay on a device between runs: `"keepWeightsOnDevice"`, the program's side.

To load a checkpoint onto a GPU every byte goes through the CPU's memory and the bus in each run.
The broker (`resident.broker`) has the files' bytes on the device already, and here a tensor is
copied from there, within the device. `Weights` has found which part of which file it is.

What a program gets is a copy, in memory of its own allocator: what it does to that, by training, in
place or by a raw pointer, changes nothing that is kept, so neither a version counter nor a look at
the end is needed. What is kept could be spoiled by a kernel of any program that writes where it
must not while it has it open, or by a fault of the sharing itself. So it is open only while weights
are loaded, and whatever was opened is first compared with the checksums that the broker has made of
the file, all of it, on the device.

A conversion to another dtype happens on the device as well. A plain load converts on the CPU; so
each kind of conversion is tried once on values of all sorts, and where one bit differs it is left
to torch. A NaN stays a NaN; which of them isn't the same on one CPU for all places in a tensor.

Nothing waits for the broker to read a file. A thread that lives while weights are loaded asks for
what wasn't there, and closes what is open once a second has passed without a load.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..wire.device_memory import CPU, CUDA, DeviceError, DeviceMemory, memory_of
from ..wire.lending import BLOCK, PROBE, Lender, Lent, NoLender, stamp_of, start
from .device_checks import adler32, converts_alike

#: Without a load for so long, what is open is closed. How long a broker is waited for.
_IDLE_S, _START_S = 1.0, 30.0
_LOOK_S = 0.1


class DeviceWeights:
    """What is lent, for one process. Called on the threads that load, and on one of its own."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._folder = ""
        #: Of the devices that are meant. With the CPU all runs as on a GPU, for tests.
        self._kind = os.environ.get("TENSORPOINT_WEIGHTS_DEVICE") or CUDA
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.RLock()
        self._lender: Lender | None = None
        #: By name of the device, those on which a probe came through.
        self._memories: dict[str, DeviceMemory] = {}
        self._names: dict[int, str] = {}
        self._open: dict[tuple[str, str], _Shard] = {}
        #: What wasn't there, with the state of the file: the thread asks for it.
        self._missing: dict[tuple[str, str], tuple[list[int], Any]] = {}
        #: What the broker doesn't keep.
        self._refused: set[tuple[str, str]] = set()
        #: What was found to be wrong, once.
        self._spoiled: set[tuple[str, str]] = set()
        self._alike: dict[tuple[Any, Any, Any], bool] = {}
        self._why_not = ""
        self._tending: threading.Thread | None = None
        self._over = threading.Event()
        #: When the last load was, and since when something is missing.
        self._used = self._missed = 0.0

    def want(self, folder: str) -> None:
        """Have weights from the broker of this host from now on; "" to have none any longer."""
        with self._lock:
            if folder != self._folder:
                self._folder, self._why_not = folder, ""
                self._missing.clear()
                self._refused.clear()
                self._used = 0.0  # the thread need not wait
                self._close()

    def after_fork(self) -> None:
        """A child has nothing of its parent's devices, and no right to its connection."""
        self._forget()

    def means(self, device: Any) -> bool:
        """Whether weights are kept on devices of this kind."""
        return bool(self._folder) and not self._why_not and device.type == self._kind

    def serves(self, device: Any) -> bool:
        """Whether weights can come from there: not before the program itself uses CUDA."""
        if not self.means(device) or self._kind == CPU:
            return self.means(device)
        cuda: Any = sys.modules["torch"].cuda
        return cuda.is_initialized() and not cuda.is_current_stream_capturing()

    def take(self, source: str, place: int, like: Any, device: Any, dtype: Any) -> Any:
        """A tensor on the device, as this one of the file on the CPU; None to load it plainly."""
        torch: Any = sys.modules["torch"]
        with self._lock, torch.no_grad():
            self._used = time.monotonic()
            try:
                return self._take(source, place, like, device, dtype)
            except (NoLender, OSError):  # the broker has gone, or the file
                self._close()
            except torch.cuda.OutOfMemoryError:
                pass  # they will be told when they load it, or have room enough for that
            except (DeviceError, RuntimeError) as error:
                self._on_error(error)
        return None

    def _take(self, source: str, place: int, like: Any, device: Any, dtype: Any) -> Any:
        torch: Any = sys.modules["torch"]
        shard = self._shard(source, device)
        if shard is None or place + like.nbytes > shard.size:
            return None
        made = torch.empty_like(like, device=device)
        shard.copy(made, place)
        if not self._connected().is_there():
            raise NoLender("it went while we copied")  # nobody knows what that was
        if dtype in (None, made.dtype):
            return made
        return made.to(dtype) if self._converts(made.dtype, dtype, device) else None

    # What is open --------------------------------------------------------------------------------

    def _shard(self, source: str, device: Any) -> _Shard | None:
        """A file on a device, opened and found to be right; None if there is none yet."""
        key = source, self._name(device)
        stamp = stamp_of(os.stat(source))
        shard = self._open.get(key)
        if shard is not None and shard.stamp == stamp:
            return shard
        if shard is not None:
            self._close_one(shard)
            self._refused.discard(key)
        if key in self._missing or key in self._refused:
            return None
        shard = self._opened(key, stamp, device)
        if shard is None and key not in self._refused:
            if not self._missing:
                self._missed = time.monotonic()
            self._missing[key] = stamp, device
        self._begin_tending()
        return shard

    def _opened(self, key: tuple[str, str], stamp: list[int], device: Any) -> _Shard | None:
        try:
            memory = self._probed(key[1], device)
            lent = "" if memory is None else self._ask(key, stamp)
        except NoLender:
            self._close()
            return None  # the thread has a broker started
        if memory is None or isinstance(lent, str):
            return None
        shard, is_right = _Shard(memory, key, stamp, lent), False
        try:
            is_right = shard.is_right(device)
        finally:
            if not is_right:
                shard.close()
        if is_right:
            self._open[key] = shard
            return shard
        self._connected().give_back(*key, spoiled=True)
        if key in self._spoiled:
            raise DeviceError(f"what is there of {key[0]} is not what is in the file")
        self._spoiled.add(key)
        return None

    def _ask(self, key: tuple[str, str], stamp: list[int]) -> Lent | str:
        """What is lent; "" while it is read, which begins when it is asked for."""
        lent = self._connected().lend(key[0], stamp, key[1])
        if isinstance(lent, str) and lent:
            self._refused.add(key)
            self._tell(f"{key[0]} is not kept on {self._kind}: {lent}.")
        return lent

    def _probed(self, name: str, device: Any) -> DeviceMemory | None:
        """The memory of a device where sharing works; None if that isn't known yet."""
        memory = self._memories.get(name)
        if memory is not None:
            return memory
        lent = self._connected().lend(PROBE, [], name)
        if isinstance(lent, str):
            if lent:
                raise DeviceError(lent)
            return None
        memory = memory_of(name)
        probe = _Shard(memory, (PROBE, name), [], lent)
        try:
            if not probe.is_right(device):
                raise DeviceError("one process does not see there what another writes")
        finally:
            probe.close()
        self._connected().give_back(PROBE, name)
        self._memories[name] = memory
        return memory

    def _connected(self) -> Lender:
        if self._lender is None:
            self._lender = Lender(self._folder)
        return self._lender

    def _name(self, device: Any) -> str:
        """What the device is called in all processes."""
        if self._kind == CPU:
            return f"{CPU}:memory"
        from ..wire.cuda import uuid_of

        number = device.index
        if number is None:
            number = sys.modules["torch"].cuda.current_device()
        if number not in self._names:
            self._names[number] = f"{CUDA}:{uuid_of(number)}"
        return self._names[number]

    def _close_one(self, shard: _Shard) -> None:
        del self._open[shard.key]
        shard.close()
        self._connected().give_back(*shard.key)

    def _close(self) -> None:
        """Close everything, and hang up."""
        for shard in self._open.values():
            with suppress(DeviceError):
                shard.close()
        self._open.clear()
        if self._lender is not None:
            self._lender.close()
            self._lender = None

    def _on_error(self, error: Exception) -> None:
        """Load plainly from now on, and say so once; unless it is only that the broker has gone."""
        gone = self._lender is not None and not self._lender.is_there()
        self._close()
        if not gone:
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        self._why_not = why
        self._missing.clear()
        self._tell(f"weights are not kept on {self._kind}, they load as ever: {why}.")

    # The thread ----------------------------------------------------------------------------------

    def _begin_tending(self) -> None:
        if self._tending is None:
            self._tending = threading.Thread(
                target=self._tend, name="tensorpoint.weights", daemon=True
            )
            self._tending.pydev_do_not_trace = True  # type: ignore[attr-defined]
            self._tending.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
            self._tending.start()
            atexit.register(self._end_tending)

    def _end_tending(self) -> None:
        """Before the interpreter ends: a thread that is in torch then takes the process along."""
        self._over.set()
        if self._tending is not None:
            self._tending.join(_START_S)

    def _tend(self) -> None:
        while not self._over.wait(_LOOK_S):
            with self._lock:
                is_idle = time.monotonic() - self._used > _IDLE_S
                try:
                    if self._missing:
                        self._ask_for_missing()
                        self._end_waiting("the resident process does not get ready for that")
                    elif is_idle:
                        self._close()
                        self._tending = None
                        atexit.unregister(self._end_tending)
                        return
                except NoLender as error:
                    self._close()
                    self._end_waiting(str(error))
                except (DeviceError, RuntimeError) as error:
                    self._on_error(error)

    def _end_waiting(self, why: str) -> None:
        if self._missing and time.monotonic() - self._missed > _START_S:
            self._close()
            self._give_up(why)

    def _ask_for_missing(self) -> None:
        """Have read what wasn't there, by a broker that is started if need be. Raises NoLender."""
        if self._lender is None:
            try:
                self._connected()
            except NoLender:
                start(self._folder)
                return
        for key, (stamp, device) in [*self._missing.items()]:
            if self._probed(key[1], device) is not None:
                if isinstance(self._ask(key, stamp), Lent):
                    self._connected().give_back(*key)
                del self._missing[key]

    # Conversions ---------------------------------------------------------------------------------

    def _converts(self, given: Any, wanted: Any, device: Any) -> bool:
        """Whether the device converts as the CPU does."""
        known = self._alike.get((given, wanted, device))
        if known is None:
            known = converts_alike(
                given, wanted, lambda values: values.to(device).to(wanted).to(CPU)
            )
            self._alike[given, wanted, device] = known
        return known


class _Shard:
    """A file on a device that is open here. Raises DeviceError."""

    def __init__(
        self, memory: DeviceMemory, key: tuple[str, str], stamp: list[int], lent: Lent
    ) -> None:
        self.key, self.stamp, self.size = key, stamp, lent.size
        self._memory, self._sums = memory, lent.sums
        self._address = memory.open(lent.handle, lent.size)

    def copy(self, target: Any, place: int) -> None:
        """Fill a tensor of the device with what is at this place."""
        stream = 0
        if target.is_cuda:
            stream = sys.modules["torch"].cuda.current_stream(target.device).cuda_stream
        self._memory.copy(target.data_ptr(), self._address + place, target.nbytes, stream)

    def is_right(self, device: Any) -> bool:
        """Whether it has the checksums of the file, all of it."""
        torch: Any = sys.modules["torch"]
        block = torch.empty(min(BLOCK, self.size), dtype=torch.uint8, device=device)
        found: list[Any] = []
        for place in range(0, self.size, BLOCK):
            part = block[: min(BLOCK, self.size - place)]
            self.copy(part, place)
            found.append(adler32(part))
        return not found or tuple(torch.stack(found).tolist()) == self._sums

    def close(self) -> None:
        self._memory.close(self._address)
