"""Reading numbers of a tensor without hanging the debugger, harming a capture or waking a device.

On the CPU work just runs. On CUDA it is queued on a stream of its own, after what the current
stream has queued so far, and its result is polled for: `item()` or `cpu()` would wait for ever
for a stream that hangs in a collective. Nothing runs while a graph is captured, nor after an error
that has broken the context (a device-side assert makes every call fail from then on, pytorch#74079;
others are of one call, and the stream still answers), nor where the program has no context: a look
must not create one. The tensor is marked as used on our stream where we stop waiting, so that the
allocator doesn't hand its memory on too early.

A capture is known to the thread that makes it alone, and by default calls of any other thread would
end it with an error. So the thread that stands still says whether it captures, when its rows are
made (`notice`); what is asked of pydevd's command thread comes after that.

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
BUSY = "the device is busy (a kernel or a collective has not finished)"
_CAPTURING = "a CUDA graph is being captured"


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
    """What is known of each device: our stream, and why it can't be used now or any more."""

    def __init__(self) -> None:
        self.streams: dict[Any, Any] = {}
        self.capturing = False
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
    if _cuda.capturing:
        return _CAPTURING
    device = read(tensor, "device")
    try:
        with torch.cuda.device(device):  # (It has a context: there is a tensor on it.)
            if torch.cuda.is_current_stream_capturing():
                return _CAPTURING
            torch.cuda.current_stream(device).query()
    except Exception as error:  # AcceleratorError derives from RuntimeError, older ones differ
        return _break(error)
    return None


def notice(tensor: Any) -> None:
    """Keep in mind whether this thread captures a graph on the tensor's device."""
    torch = sys.modules["torch"]
    if _cuda.broken is not None or not torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork():
        return
    try:
        with torch.cuda.device(read(tensor, "device")):
            _cuda.capturing |= torch.cuda.is_current_stream_capturing()
    except Exception as error:
        _break(error)


def forget() -> None:
    """The program goes on: it may end the capture, or begin one."""
    _cuda.capturing = False


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
                    return Unavailable(BUSY)
                time.sleep(0.001)
            return host
    except torch.OutOfMemoryError:
        return Unavailable("there is no memory left on the device for a look")
    except Exception as error:
        return Unavailable(_failed(error, device))


def _failed(error: Exception, device: Any) -> str:
    try:
        sys.modules["torch"].cuda.current_stream(device).query()
    except Exception:  # whatever is asked of a broken context fails
        return _break(error)
    return _first_line(error)


def _break(error: Exception) -> str:
    """After such an error nothing but metadata is shown: all that follows would fail as well."""
    _cuda.broken = (
        f"CUDA has failed before ({_first_line(error)}): values can't be read in this process"
    )
    return _cuda.broken
