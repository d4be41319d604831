"""How a `forward` runs without data: on the meta device, with assumptions where a value is asked
for.

- `.item()`, `if mask.all()`, `nonzero()` need values that a meta tensor doesn't have. One is
  assumed, and that is remembered; both truth values are tried by who runs it (`transformers` takes
  a short way through its masks when `mask.all()`, so one assumption alone is half of the truth).
- A meta kernel that complains isn't believed (that of `_grouped_mm` wants bf16, the CPU's takes
  f32): the real kernel is asked with zeros of the same sizes, if they are small, and has the last
  word. If they are large, the meta kernel is asked with bf16.
- Devices are all the meta device: `x.cuda()` and `torch.zeros(..., device="cpu")` stay there.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from ...wire.shapes import Span
from .casting import cast, dtype_of_recurrent, is_disguised, plainly
from .kernels import meta
from .positions import place_in
from .recorder import Recorder
from .recurrent import RECURRENT, packed, padded, recurrent

_ATEN = torch.ops.aten
_META = torch.device("meta")
#: Elements up to which a real kernel is asked.
_MOST_REAL = 2_000_000
#: Functions whose operands belong together element by element.
_PAIRED = {
    *(
        "sub",
        "__sub__",
        "rsub",
        "__rsub__",
        "eq",
        "__eq__",
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
    ),
    *("huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
}
_TO_DEVICE = {"cuda", "cpu"}
_AT_HOME = {"pin_memory", "share_memory_"}
#: All that is seen to by name.
_HANDLED = {
    *(_TO_DEVICE | _AT_HOME | _PAIRED | {*RECURRENT}),
    *("to", "tolist", "_pack_padded_sequence", "_pad_packed_sequence"),
}


class TooLong(BaseException):
    """The run was given up: it says nothing about its sizes."""


@dataclass
class Assumptions:
    """What is assumed of values, and where that was asked for: line of the file, what, assumed."""

    file: str
    truth: bool = True
    #: When to give up, by `time.monotonic`.
    deadline: float = math.inf
    #: The sizes of this run, for `found`.
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    #: Numbers of elements that values decide about: symbols of their own, `N`, `N2`, ...
    found: dict[str, int] = field(default_factory=dict[str, int])
    made: dict[tuple[int, str], str] = field(default_factory=dict[tuple[int, str], str])
    #: Where (n, 1) met (n,), and n.
    grown: dict[Span, int] = field(default_factory=dict[Span, int])

    def count(self, what: str) -> int:
        """How many elements are found. Another symbol each time: two masks differ."""
        name = found_symbol(len(self.found))
        self.found[name] = found_size(self.sizes, name)
        self.note(what, name)
        return self.found[name]

    def note(self, what: str, value: object) -> None:
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        self.made[(frame.f_lineno if frame else 0, what)] = str(value)


def found_symbol(index: int) -> str:
    """The name of the number of elements that the `index`th such operation finds."""
    return f"N{index + 1}" if index else "N"


def found_size(sizes: dict[str, int], name: str) -> int:
    """A number for it: another one in each run, and for each name."""
    return random.Random(f"{sorted(sizes.items())} {name}").randint(9, 99)


#: By which `no_grad` and `autocast` put back what was: an exception there would leave them on.
_PUT_BACK = frozenset({"_set_grad_enabled", "_exit_autocast"})


class Deadline(TorchFunctionMode):
    """Gives up, by `TooLong`, in the first function of torch after `end`, of `time.monotonic`."""

    def __init__(self, end: float) -> None:
        super().__init__()
        self._end = end

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if time.monotonic() > self._end and getattr(func, "__name__", "") not in _PUT_BACK:
            raise TooLong
        return func(*args, **(kwargs or {}))


class OnMeta(TorchFunctionMode):
    """Keeps everything on one device; notes broadcasts that grow both operands."""

    def __init__(
        self,
        assumptions: Assumptions,
        device: torch.device = _META,
        counter: Recorder | None = None,
        *,
        casts: bool = False,
    ) -> None:
        super().__init__()
        self._assumptions, self._device, self._counter = assumptions, device, counter
        #: Whether autocast is in force for tensors of the meta device.
        self._casts = casts

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if self._casts and torch._C._is_any_autocast_enabled():
            call: Any = partial(cast, func)
        else:
            call = func
        if not kwargs and name not in _HANDLED:  # most of all: `x.shape`, `layer_norm(x)`
            return call(*args)
        first = next(iter(args), None)
        if name in _TO_DEVICE and isinstance(first, torch.Tensor):
            return first
        if kwargs and "device" in kwargs:
            kwargs = {**kwargs, "device": self._device if kwargs["device"] is not None else None}
        if name == "to" and len(args) > 1:
            args = (
                args[0],
                *[self._device if _is_device(argument) else argument for argument in args[1:]],
            )
        if name in _PAIRED and len(args) > 1:
            self._compare(args[0], args[1])
        if name in _AT_HOME:
            return first
        if name == "tolist" and isinstance(first, torch.Tensor) and _is_valueless(first):
            return _listed(_scalar(self._assumptions, first), tuple(first.shape))
        if name == "_pack_padded_sequence" and _is_meta(first):
            return packed(self._assumptions, *args)
        if name == "_pad_packed_sequence" and _is_meta(first):
            return padded(*args)
        if name in RECURRENT and _is_valueless(first):
            out, flops = recurrent(name, args, dtype_of_recurrent() if self._casts else None)
            if self._counter is not None:
                self._counter.flops += flops
            return out
        return call(*args, **(kwargs or {}))

    def _compare(self, one: Any, other: Any) -> None:
        """(B, 1) against (B,) is (B, B), which no loss means."""
        if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
            return
        flat, column = (one, other) if one.dim() == 1 else (other, one)
        if flat.dim() == 1 and column.dim() == 2 and column.shape[1] == 1:
            if flat.shape[0] == column.shape[0] > 1:
                place = place_in(self._assumptions.file, sys._getframe(2))
                if place is not None:
                    self._assumptions.grown[place] = flat.shape[0]


def _is_device(value: Any) -> bool:
    return isinstance(value, (str, torch.device))


@contextlib.contextmanager
def without_data(assumptions: Assumptions, counter: Recorder | None = None) -> Generator[None]:
    """All of it; `counter` gets the floating point operations."""
    with (
        torch.device("meta"),
        OnMeta(assumptions, counter=counter, casts=True),
        WithoutValues(assumptions, counter),
        torch.no_grad(),
    ):
        yield


class WithoutValues(TorchDispatchMode):
    """Answers for operations whose result depends on values."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else the first operation imports the compiler: two seconds.
        return False

    def __init__(self, assumptions: Assumptions, counter: Recorder | None = None) -> None:
        super().__init__()
        self.assumptions, self._counter = assumptions, counter

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if is_disguised(types):
            return plainly(func, args, kwargs or {}, partial(self._answer, func))
        return self._answer(func, *args, **(kwargs or {}))

    def _answer(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        if time.monotonic() > self.assumptions.deadline:
            raise TooLong
        answer = _VALUE_BOUND.get(func)
        if answer is not None and any(_is_valueless(argument) for argument in args):
            return answer(self.assumptions, *args)
        if func is _ATEN.index.Tensor or func is _ATEN.index_put_.default:
            args = self._without_masks(args)
        if func is _ATEN.repeat_interleave.Tensor and not kwargs.get("output_size"):
            return args[0].new_empty((self.assumptions.count("repeat_interleave"),))
        if func is _ATEN.convolution.default:
            _check_transposed(*args)
        try:
            out = meta(func, args, kwargs, func)
        except Exception as error:
            if any(_is_fake(argument) for argument in args):
                raise
            return self._really(func, args, kwargs, error)
        if self._counter is not None:
            count = flop_registry.get(func.overloadpacket)
            if count is not None:
                self._counter.flops += count(*args, **kwargs, out_val=out)
        return out

    def _without_masks(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Masks among indices as that many numbers."""
        indices: list[Any] = []
        for index in args[1]:
            if isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8):
                count = self.assumptions.count("elements of a mask")
                indices += [index.new_empty((count,), dtype=torch.long) for _ in range(index.dim())]
            else:
                indices.append(index)
        return (args[0], indices, *args[2:])

    def _really(self, func: Any, args: Any, kwargs: Any, error: Exception) -> Any:
        operands = [each for each in tree_leaves((args, kwargs)) if _is_meta(each)]
        if sum(each.numel() for each in operands) > _MOST_REAL:
            return _as_bf16(func, args, kwargs, operands, error)

        def real(value: Any) -> Any:
            if isinstance(value, torch.device):
                return torch.device("cpu")
            if not _is_meta(value):
                return value
            if value.dtype == torch.bool:
                return torch.ones(tuple(value.shape), dtype=value.dtype)
            return torch.zeros(tuple(value.shape), dtype=value.dtype)

        with _disable_current_modes(), torch._C._DisableAutocast():
            try:
                out = func(*tree_map(real, args), **tree_map(real, kwargs))
            except Exception as second:
                if second is error:
                    raise
                raise second from None
            return tree_map(lambda v: v.to(_META) if isinstance(v, torch.Tensor) else v, out)


def _as_bf16(func: Any, args: Any, kwargs: Any, operands: list[Any], error: Exception) -> Any:
    """What is too large for a real kernel, as the meta kernels of some operations want it."""
    kinds = {each.dtype for each in operands if each.dtype.is_floating_point}
    if len(kinds) != 1 or torch.bfloat16 in kinds:
        raise error
    [kind] = kinds

    def changed(value: Any, one: torch.dtype, other: torch.dtype) -> Any:
        return value.to(other) if _is_meta(value) and value.dtype is one else value

    with _disable_current_modes():
        try:
            inside = tree_map(lambda v: changed(v, kind, torch.bfloat16), (args, kwargs))
            out = func(*inside[0], **inside[1])
        except Exception:  # it wants something else
            raise error from None
        return tree_map(lambda v: changed(v, torch.bfloat16, kind), out)


def _check_transposed(data: Any, weight: Any, *rest: Any) -> None:
    """The meta kernel takes any number of channels."""
    if rest[4] and data.shape[1] != weight.shape[0]:
        raise RuntimeError(
            f"Given transposed=1, weight of size {list(weight.shape)}, expected input"
            f"{list(data.shape)} to have {weight.shape[0]} channels, but got {data.shape[1]} "
            "channels instead"
        )


def _is_meta(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "meta"


def _is_fake(value: Any) -> bool:
    return type(value).__name__ == "FakeTensor"  # of a module that is rarely imported


def _is_valueless(value: Any) -> bool:
    return _is_meta(value) or _is_fake(value)


def _scalar(assumptions: Assumptions, tensor: Any) -> Any:
    kind = tensor.dtype
    value: Any = 1
    if kind is torch.bool:
        value = assumptions.truth
    elif kind.is_floating_point:
        value = 1.0
    assumptions.note("value", value)
    return value


def _listed(value: Any, shape: tuple[int, ...]) -> Any:
    """`tolist()`, which torch doesn't dispatch: the value that is assumed, in every place."""
    for size in reversed(shape):
        value = [value] * int(size)
    return value


def _nonzero(assumptions: Assumptions, tensor: Any) -> Any:
    return tensor.new_empty((assumptions.count("nonzero"), tensor.dim()), dtype=torch.long)


def _selected(assumptions: Assumptions, tensor: Any, *_: Any) -> Any:
    return tensor.new_empty((assumptions.count("masked_select"),))


def _unique(assumptions: Assumptions, tensor: Any, *_: Any) -> Any:
    count = assumptions.count("unique")
    return (
        tensor.new_empty((count,)),
        tensor.new_empty(tensor.shape, dtype=torch.long),
        tensor.new_empty((count,), dtype=torch.long),
    )


def _equal(assumptions: Assumptions, *_: Any) -> Any:
    assumptions.note("equal", assumptions.truth)
    return assumptions.truth


_VALUE_BOUND: dict[Any, Any] = {
    _ATEN._local_scalar_dense.default: _scalar,
    _ATEN.nonzero.default: _nonzero,
    _ATEN.masked_select.default: _selected,
    _ATEN._unique2.default: _unique,
    _ATEN.unique_consecutive.default: _unique,
    _ATEN.equal.default: _equal,
}
