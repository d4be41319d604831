"""Reading numbers of a tensor without hanging the debugger, harming a capture or waking a device.

On the CPU work just runs. On CUDA it is queued on a stream of its own, after what the current
stream has queued so far, and its result is polled for: `item()` or `cpu()` would wait for ever
for a stream that hangs in a collective. Nothing runs while a graph is captured on the stream,
nor after an error that has broken the context (a device-side assert makes every call fail from
then on, pytorch#74079), nor where the program has no context: a look must not create one. The
tensor is marked as used on our stream where we stop waiting, so that the allocator doesn't hand its
memory on too early.

The CUDA part follows torch 2.13 (torch/cuda/streams.py, c10/cuda/CUDACachingAllocator.cpp); its
guards are tested with a pretended device, the rest on one where there is one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .plain import read

#: How long a device has for an answer.
_SECONDS = 0.5
_BUSY = "the device is busy (a kernel or a collective has not finished)"


@dataclass(frozen=True)
class Unavailable:
    """Why there are no numbers, in words."""

    reason: str

    @classmethod
    def because(cls, error: Exception) -> Unavailable:
        """By the first line of an error of torch's."""
        return cls(_first_line(error))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


class _Cuda:
    """What is known of each device: our stream, and why it can't be used any more."""

    def __init__(self) -> None:
        self.streams: dict[Any, Any] = {}
        self.broken: str | None = None


_cuda = _Cuda()


def why_not(tensor: Any) -> str | None:
    """Why the numbers can't be read now; None if they can."""
    kind = read(tensor, "device").type
    if kind == "cpu":
        return None
    if kind != "cuda":
        return f"values on {kind} are not read; move it to the CPU to see them"
    torch = sys.modules["torch"]
    if not torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork():
        return "CUDA is not initialised in this process"
    if _cuda.broken is not None:
        return _cuda.broken
    try:
        if torch.cuda.is_current_stream_capturing():
            return "a CUDA graph is being captured"
        torch.cuda.current_stream(tensor.device).query()
    except Exception as error:  # AcceleratorError derives from RuntimeError, older ones differ
        return _break(error)
    return None


def run(tensor: Any, work: Callable[[], Any]) -> Any:
    """What `work` makes of `tensor`, as numbers of the host; or why not."""
    found = fetch(tensor, work)
    return found if isinstance(found, Unavailable) else found.tolist()


def fetch(tensor: Any, work: Callable[[], Any]) -> Any:
    """The tensor that `work` makes of `tensor`, in the host's memory; or why not."""
    if tensor.device.type == "cpu":
        try:
            return work()
        except RuntimeError as error:  # a dtype that an operation doesn't know, no memory left
            return Unavailable.because(error)
    torch = sys.modules["torch"]
    device = tensor.device
    try:
        with torch.cuda.device(device):
            stream = _cuda.streams.get(device)
            if stream is None:
                stream = _cuda.streams[device] = torch.cuda.Stream(device)
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                found = work()
                host = torch.empty(found.shape, dtype=found.dtype, device="cpu", pin_memory=True)
                host.copy_(found, non_blocking=True)
                done = torch.cuda.Event()
                done.record(stream)
            end = time.monotonic() + _SECONDS
            while not done.query():
                if time.monotonic() > end:
                    tensor.record_stream(stream)
                    return Unavailable(_BUSY)
                time.sleep(0.001)
            return host
    except torch.OutOfMemoryError:
        return Unavailable("there is no memory left on the device for a look")
    except Exception as error:
        return Unavailable(_break(error))


def _break(error: Exception) -> str:
    """After a CUDA error nothing but metadata is shown: all that follows would fail as well."""
    text = _first_line(error)
    if "CUDA" in text or "device-side" in text:
        _cuda.broken = f"CUDA has failed before ({text}): values can't be read in this process"
        return _cuda.broken
    return text
