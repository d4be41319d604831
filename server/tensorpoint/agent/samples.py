"""Statistics of many tensors at once: samples are copied into rows, and measured by the table.

Ten kernels for one layer's numbers cost 100 us, most of it for starting them. So a hook only copies
a sample of the output into the next row of a table (10 to 20 us); rows are measured together when
the table is full or somebody reads (8 us each), which on CUDA is the one wait for the device.

A table is 2 MiB for each thread, device and stream. It is of doubles: the square of any float32
is finite there, and the variance of numbers far from 0 keeps its digits.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..wire.facts import SAMPLE
from .tensors import sample_of, unseen

if TYPE_CHECKING:
    import torch

ROWS = 128
#: How long a reader waits for a device that is busy; its queue may never end (a stuck collective).
_PATIENCE_SECONDS = 0.5


#: Of one sample, in this order. `rms` is of all elements, NaN if one isn't finite; the rest is as
#: `wire.facts.Statistics` has it.
Numbers = list[float]
MEAN, STD, MIN, MAX, ZERO_FRACTION, NONFINITE_FRACTION, RMS = range(7)


class Sampling(NamedTuple):
    """Of a dense tensor like this, `length` elements are looked at, `stride` apart in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    device: Any
    elements: int
    length: int
    stride: int


class Measured(Protocol):
    """What a sample is taken for."""

    def measured(self, step: int | None, elements: int, looked_at: int, numbers: Numbers) -> None:
        """`looked_at` of the tensor's `elements` have these numbers, in that step."""


class Samples:
    """The rows of one thread and device (and stream) that are not measured yet.

    The thread adds rows, and clears them when the table is full. Any thread may `measure` what
    there is; a lock is held around that and the clearing.
    """

    def __init__(self, device: torch.device) -> None:
        torch = sys.modules["torch"]
        self._device = device
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        double = torch.float32 if device.type == "mps" else torch.float64
        with torch.inference_mode(False):
            self.table: torch.Tensor = _table(double, device)
        #: What the row of the same position is of: (whom to tell, step, elements, length).
        self.rows: list[tuple[Measured, int | None, int, int]] = []
        self._measured = 0

    @property
    def is_on_cpu(self) -> bool:
        """Whether to measure them runs nothing on a device."""
        return self._device.type == "cpu"

    @unseen
    def take_any(self, tensor: torch.Tensor, whom: Measured, step: int | None) -> None:
        """Copy a sample of any tensor into the next row; nothing if it can't be looked at."""
        sample = sample_of(tensor, SAMPLE, SAMPLE)
        if sample is None or sample.numel() == 0 or sample.device != self._device:
            return
        if sample.numel() > SAMPLE:
            sample = sample[:: -(-sample.numel() // SAMPLE)]
        length = sample.numel()
        self.table[len(self.rows), :length].copy_(sample)
        self.rows.append((whom, step, tensor.numel(), length))

    def measure(self, wait: bool = True) -> None:
        """Tell everyone their numbers. Without `wait` nothing happens while the device is busy."""
        first = self._measured
        rows = self.rows[first:]
        if not rows or not (wait or self._is_idle()):
            return
        lengths = [length for _, _, _, length in rows]
        for row, numbers in _numbers_of(self.table[first:], lengths, self._on()):
            whom, step, elements, length = rows[row]
            whom.measured(step, elements, length, numbers)
        self._measured += len(rows)

    def clear(self) -> None:
        """Begin the table again."""
        self.rows.clear()
        self._measured = 0

    def _on(self) -> AbstractContextManager[Any]:
        """The stream that the rows were written in, made current."""
        if self._stream is None:
            return nullcontext()
        return sys.modules["torch"].cuda.stream(self._stream)

    def _is_idle(self) -> bool:
        if self._stream is None:
            return True
        with self._on():
            if not can_wait(self._device):  # to ask whether it is idle would end the capture
                return False
        end = time.monotonic() + _PATIENCE_SECONDS
        while not self._stream.query():
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True


def stream_of(device: torch.device) -> int:
    """What CUDA calls the current stream of `device`; 0 for devices that have none."""
    if device.type != "cuda":
        return 0
    return sys.modules["torch"]._C._cuda_getCurrentRawStream(device.index or 0)


def can_wait(device: torch.device) -> bool:
    """False while a CUDA graph is captured: what is queued then runs only when it is replayed."""
    return device.type != "cuda" or not sys.modules["torch"].cuda.is_current_stream_capturing()


def sampler() -> Callable[[Any, Sampling | None], Sampling | None]:
    """Makes what says how a tensor is sampled; torch must be there.

    It returns `known` if that still fits, and None for what takes a closer look (`take_any`).
    One frame of C calls, as `tensors.quick_look`.
    """
    torch = sys.modules["torch"]
    types, strided = (torch.Tensor, torch.nn.Parameter), torch.strided
    dtypes = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float64))
    function_modes = torch._C._len_torch_function_stack
    dispatch_modes = torch._C._len_torch_dispatch_stack
    transform, trace = torch._C._functorch.maybe_current_level, torch._C._get_tracing_state

    def sampling_of(tensor: Any, known: Sampling | None) -> Sampling | None:
        if (
            type(tensor) not in types
            or function_modes()
            or dispatch_modes()
            or tensor.layout is not strided
            or tensor.is_nested
            or transform() is not None
            or trace()
        ):
            return None
        shape, strides, dtype, device = tensor.shape, tensor.stride(), tensor.dtype, tensor.device
        if (
            known is not None
            and known.shape == shape
            and known.strides == strides
            and known.dtype is dtype
            and known.device == device
        ):
            return known
        if dtype not in dtypes or tensor.is_meta:
            return None
        return _sampling(shape, strides, dtype, device)

    return sampling_of


def _sampling(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, device: Any
) -> Sampling | None:
    """The order of elements doesn't matter, so a permuted tensor counts as dense.

    An odd stride doesn't keep hitting the same column of a matrix whose width is a power of two.
    """
    elements = 1
    for step, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if step != elements:
                return None
            elements *= size
    if elements == 0:
        return None
    stride = -(-elements // SAMPLE)
    if stride > 1:
        stride |= 1
    return Sampling(shape, strides, dtype, device, elements, -(-elements // stride), stride)


@unseen
def _table(dtype: Any, device: torch.device) -> torch.Tensor:
    return sys.modules["torch"].empty((ROWS, SAMPLE), dtype=dtype, device=device)


@unseen
def _numbers_of(
    table: torch.Tensor, lengths: list[int], on: AbstractContextManager[Any]
) -> list[tuple[int, Numbers]]:
    """(row, numbers) of each row, of which `lengths` are filled."""
    torch = sys.modules["torch"]
    by_length: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        by_length.setdefault(length, []).append(row)
    order = [row for rows in by_length.values() for row in rows]
    with on:
        one = len(by_length) == 1
        parts = [
            table[: len(rows), :length] if one else table[rows, :length]
            for length, rows in by_length.items()
        ]
        # amin and amax apart are ten times faster than aminmax, and the sum of |sign| three
        # times faster than count_nonzero.
        sums = [
            torch.stack(
                (
                    part.sum(1),
                    torch.linalg.vector_norm(part, dim=1),
                    part.amin(1),
                    part.amax(1),
                    part.sign().abs_().sum(1),
                )
            )
            for part in parts
        ]
        total, norm, low, high, nonzero = torch.cat(sums, 1).cpu()
        count = torch.tensor([lengths[row] for row in order], dtype=total.dtype, device="cpu")
        mean = total / count
        # Of one number: 0 / 0, NaN.
        std = (norm * norm - total * mean).clamp_(min=0).div_(count - 1).sqrt_()
        zeros, rms = 1 - nonzero / count, norm / count.sqrt()
        bad = torch.zeros_like(mean)
        numbers = torch.stack((mean, std, low, high, zeros, bad, rms), 1).tolist()
        for row, found in zip(order, numbers, strict=True):
            if not math.isfinite(found[RMS]):
                found[:] = _of_finite(torch, table[row, : lengths[row]])
    return sorted(zip(order, numbers, strict=True))


def _of_finite(torch: Any, values: torch.Tensor) -> Numbers:
    """The numbers where some elements are not finite."""
    good = values[torch.isfinite(values)]
    zeros = 1 - int(torch.count_nonzero(values)) / len(values)
    bad = 1 - len(good) / len(values)
    rms = math.nan if len(good) < len(values) else math.inf
    if not len(good):
        return [math.nan, math.nan, math.nan, math.nan, zeros, bad, rms]
    std = good.std().item() if len(good) > 1 else math.nan
    return [good.mean().item(), std, good.min().item(), good.max().item(), zeros, bad, rms]


def finite(number: float) -> float | None:
    """A number as JSON has it."""
    return number if math.isfinite(number) else None
