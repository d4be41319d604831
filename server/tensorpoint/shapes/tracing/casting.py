"""Autocast without a device: which dtypes operations have under `torch.autocast`.

torch's rules for that are kernels of the dispatcher, a set for each kind of device, and the set of
a GPU is in force for tensors of a GPU alone. So for one function of torch's at a time the operands
are disguised as tensors of that device (`cast`): each operation is cast as it would be there, and
comes to the dispatch modes, which look beneath the disguise (`plainly`). There is no table of ours:
what a version of torch casts is cast. FakeTensor is disguised in the same way, but for good: all
parameters would have to be, and a torch without CUDA can't index with them.

A `torch.autocast` is taken at its word where there is no such device (`allow_all_devices`). What
its arguments are may hang on the machine, `bf16 if is_bf16_supported() else f16` (`machines`): then
what comes of it on another is tried, too.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .machines import HERE, Machine, others

_AUTOCAST: Any = torch.amp.autocast_mode.autocast
_DEVICES = ("cuda", "cpu", "xpu", "mps", "hpu")
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_DEVICE_OF = torch.ops.prim.device.default
_META = torch.device("meta")
#: Which cast nothing, and need a device to be there.
_PLAIN = {"__get__", "__set__", "__getitem__", "__setitem__"}
#: Files between the user's and ours: `torch.cuda.amp`, what runs scripts.
_BETWEEN = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)
_NO_DEVICE = re.compile(r"not linked with|No CUDA|NVIDIA driver|CUDA error")


@dataclass(frozen=True)
class Casting:
    """An autocast that is in force. `dtype` is None where it is switched off."""

    device: str
    dtype: torch.dtype | None


#: Autocasts that something is called under, None for none, and the machines that they are on.
Castings = tuple[tuple[Casting | None, Machine], ...]
NO_CASTING: Castings = ((None, HERE),)


class _State:
    """Of this process: one run at a time."""

    machine: Machine = HERE
    #: Which arguments hang on the machine, of the autocasts that were entered in this run.
    hanging: set[str]

    def __init__(self) -> None:
        self.hanging = set()


_STATE = _State()


# -- what is in force


def in_force() -> Casting | None:
    """The autocast that is switched on."""
    if torch._C._is_any_autocast_enabled():
        for device in _DEVICES:
            if torch.is_autocast_enabled(device):
                return Casting(device, torch.get_autocast_dtype(device))
    return None


def dtype_of_recurrent() -> torch.dtype | None:
    """What LSTMs give: cuDNN's are cast as a whole, those of the CPU in their steps."""
    casting = in_force()
    return casting.dtype if casting else None


def casting_of(context: Any, machine: Machine = HERE) -> Casting | None:
    """What a context manager switches on; None if it is no autocast."""
    if not isinstance(context, _AUTOCAST):
        return None
    hanging: Collection[str] = getattr(context, "hanging", ())
    device, dtype, enabled = context.device, context.fast_dtype, context._enabled
    if machine is not HERE and hanging:
        device = "cuda" if "device_type" in hanging else device
        enabled = enabled or "enabled" in hanging
        if "dtype" in hanging:
            dtype = machine.dtype
        elif not context.is_given:
            dtype = torch.get_autocast_dtype(device)
    return Casting(device, dtype if enabled else None)


def autocast_of(given: Mapping[str, Any], hanging: Collection[str]) -> Any:
    """An autocast with these arguments; those that hang on the machine may be missing."""
    device = given.get("device_type") or ("cpu" if "device_type" in hanging else "cuda")
    made = _AUTOCAST(
        device, given.get("dtype"), bool(given.get("enabled", "enabled" not in hanging))
    )
    made.hanging = hanging
    return made


def is_autocast(function: Any) -> bool:
    """Whether it is `torch.autocast`, or one that is made of it."""
    return isinstance(function, type) and issubclass(function, _AUTOCAST)


def machines_for(context: Any) -> list[Machine]:
    """On which other machines an autocast may be something else."""
    return others(getattr(context, "hanging", ()))


def castings_made_by(context: Any) -> Castings:
    """What an autocast switches on, here and on other machines."""
    here = casting_of(context)
    others = [(casting_of(context, each), each) for each in machines_for(context)]
    return ((here, HERE), *(each for each in others if each[0] != here))


@contextlib.contextmanager
def under(casting: Casting | None, machine: Machine = HERE) -> Generator[set[str]]:
    """Runs what is within under an autocast, on such a machine.

    Gives the arguments of other autocasts that hang on it.
    """
    before = {each: torch.is_autocast_enabled(each) for each in _DEVICES}
    _STATE.machine, _STATE.hanging = machine, set()
    try:
        with entered(casting):
            yield _STATE.hanging
    finally:
        _STATE.machine = HERE
        for device, enabled in before.items():  # an `__enter__` that was called without its exit
            torch.set_autocast_enabled(device, enabled)


def entered(casting: Casting | None) -> contextlib.AbstractContextManager[Any]:
    """A context manager of that."""
    if casting is None:
        return contextlib.nullcontext()
    made = _AUTOCAST(casting.device, casting.dtype, enabled=False)
    made._enabled = casting.dtype is not None
    return made


# -- casting


class _Disguised(torch.Tensor):
    """A tensor of the meta device that the dispatcher takes for one of another."""

    plain: torch.Tensor
    seeming: torch.device
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType] # in C

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return plainly(func, args, kwargs or {}, func)


def cast(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function of torch's under the autocast that is in force."""
    casting = in_force()
    if casting is None or getattr(func, "__name__", "") in _PLAIN:
        return func(*args, **kwargs)
    seeming = torch.device(casting.device, 0)  # without a number torch asks the driver for it

    def disguised(value: Any) -> Any:
        if type(value) not in _TENSORS or value.device != _META:
            return value
        if value.layout is not torch.strided:
            return value
        return _disguise(value, seeming)

    try:
        out = func(*tree_map(disguised, args), **tree_map(disguised, kwargs))
    except RuntimeError as error:
        if _NO_DEVICE.search(str(error)):
            return func(*args, **kwargs)
        raise
    return tree_map(_undisguised, out)


def plainly(func: Any, args: Any, kwargs: Any, call: Callable[..., Any]) -> Any:
    """What `call` does with what is beneath disguised operands, disguised."""
    if func is _DEVICE_OF:
        return args[0].seeming
    seeming: list[torch.device] = []

    def plain(value: Any) -> Any:
        if type(value) is _Disguised:
            seeming.append(value.seeming)
            return value.plain
        return value

    args, kwargs = tree_map(plain, args), tree_map(plain, kwargs)
    out = call(*args, **kwargs)
    return tree_map(lambda v: _disguise(v, seeming[0]) if type(v) in _TENSORS else v, out)


def is_disguised(types: Any) -> bool:
    """Whether an operation has operands of these types that are."""
    return _Disguised in types


def _disguise(value: torch.Tensor, seeming: torch.device) -> torch.Tensor:
    make: Any = torch.Tensor._make_subclass
    made = make(_Disguised, value, False, dispatch_device=True, device_for_backend_keys=seeming)
    made.plain, made.seeming = value, seeming
    return made


def _undisguised(value: Any) -> Any:
    return value.plain if type(value) is _Disguised else value


# -- autocasts of the user's


def allow_all_devices(hanging: Callable[[str, int], Collection[str]]) -> None:
    """Take each `torch.autocast` at its word, for the rest of this process.

    `hanging` says of a file and a line which arguments of the autocast that is made there hang on
    the machine. "meta" is what `x.device.type` is in a run without data.
    """
    if hasattr(_AUTOCAST, "is_given"):
        return
    make, enter, asked = _AUTOCAST.__init__, _AUTOCAST.__enter__, torch.is_autocast_enabled

    def made(
        self: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        make(self, _of_run(device_type), dtype, False, cache_enabled)
        self.is_given = dtype is not None
        known = self.fast_dtype in (torch.bfloat16, torch.float16) or self.device == "cuda"
        self._enabled = bool(enabled) and known
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
            frame = frame.f_back
        self.hanging = hanging(frame.f_code.co_filename, frame.f_lineno) if frame else ()
        self.as_made = (self.device, self.fast_dtype, self._enabled)

    def entered(self: Any) -> Any:
        if self.hanging:
            _STATE.hanging.update(self.hanging)
            self.device, self.fast_dtype, self._enabled = self.as_made
            now = casting_of(self, _STATE.machine)
            assert now is not None
            self.device, self._enabled = now.device, now.dtype is not None
            self.fast_dtype = now.dtype or self.fast_dtype
        return enter(self)

    _AUTOCAST.__init__, _AUTOCAST.__enter__, _AUTOCAST.is_given = made, entered, False
    torch.is_autocast_enabled = lambda *of: asked(*map(_of_run, of))


def _of_run(device_type: Any) -> Any:
    if device_type != "meta":
        return device_type
    casting = in_force()
    return casting.device if casting else "cuda"
