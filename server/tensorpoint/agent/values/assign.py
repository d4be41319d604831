"""Setting elements of tensors from an editor: checked, and refused rather than wrong.

A write goes through autograd's version counter (not through `.data`), under `no_grad`: a backward
pass that needs the old values raises then, in place of computing something else silently.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from ...wire.dtypes import short_dtype
from ..tensors import unseen
from . import devices
from .plain import is_hollow, is_lazy, is_tensor, number, plain, read, why_hollow


class Refusal(ValueError):
    """The value can't be set; the text says why."""


def set_element(tensor: Any, index: Any, value: Any, name: str) -> str:
    """Set `tensor[index]`; returns what that means for autograd ("" for nothing)."""
    target = _target(tensor, index)
    _check(target, value)
    consequence = _consequence(tensor, name)
    _write(target, value)
    return consequence


@unseen
def _target(tensor: Any, index: Any) -> Any:
    """The element (or the part) as a view. Raises Refusal."""
    torch = sys.modules["torch"]
    if is_lazy(tensor):
        raise Refusal("it has no shape before its module's first call")
    if torch._C._functorch.maybe_current_level() is not None:
        raise Refusal("the program is in a function transform: nothing is set in it")
    hollow = why_hollow(tensor)
    if hollow is not None:
        raise Refusal(f"it can't be set: {hollow}")
    whole = plain(tensor)
    if whole.is_meta:
        raise Refusal("it has no values, only a shape")
    if whole.layout is not torch.strided or whole.is_nested or whole.is_quantized:
        raise Refusal("only elements of plain dense tensors can be set")
    if whole.is_inference():
        raise Refusal("an inference tensor must not be written outside of inference_mode")
    reason = devices.why_not(whole)
    if reason is not None:
        raise Refusal(reason)
    parts = index if isinstance(index, tuple) else (index,)
    if not all(type(part) in (int, slice) or part is ... for part in parts):
        raise Refusal("the index has to be of whole numbers and slices: all else makes a copy")
    try:
        part = whole[index]
    except (IndexError, TypeError) as error:
        raise Refusal(str(error)) from None
    shared = [size for size, step in zip(whole.shape, whole.stride()) if step == 0 and size > 1]
    if shared:
        raise Refusal("the tensor is expanded: one place in memory is several elements of it")
    return part


def _check(target: Any, value: Any) -> None:
    torch, dtype = sys.modules["torch"], target.dtype
    if is_tensor(value):
        _check_tensor(target, value)
        return
    if isinstance(value, bool):
        fits = dtype is torch.bool
    elif isinstance(value, int):
        fits = dtype is not torch.bool
    elif isinstance(value, float):
        fits = dtype.is_floating_point or dtype.is_complex
    elif isinstance(value, complex):
        fits = dtype.is_complex
    else:
        raise Refusal(f"{type(value).__name__} is neither a number nor a tensor")
    if not fits:
        raise Refusal(f"{value!r} is no value of {short_dtype(dtype)}")
    if dtype is torch.bool:
        return
    if dtype.is_floating_point or dtype.is_complex:
        _check_float(dtype, value)
        return
    try:
        limits = torch.iinfo(dtype)
    except TypeError:  # bits that torch gives no number to
        raise Refusal(f"numbers can't be set in a {short_dtype(dtype)} tensor") from None
    if not limits.min <= value <= limits.max:
        raise Refusal(f"{value} is out of the range of {short_dtype(dtype)}")


def _check_float(dtype: Any, value: Any) -> None:
    try:
        largest = sys.modules["torch"].finfo(dtype).max
    except NotImplementedError:  # float4, two in a byte
        raise Refusal(f"numbers can't be set in a {short_dtype(dtype)} tensor") from None
    parts = (value.real, value.imag) if isinstance(value, complex) else (value,)
    if any(math.inf > abs(part) > largest for part in parts):
        shown = "this number" if isinstance(value, int) else f"{value:g}"
        raise Refusal(f"{shown} is out of the range of {short_dtype(dtype)}")


@unseen
def _check_tensor(target: Any, value: Any) -> None:
    if is_hollow(value):
        raise Refusal(f"the value is a {type(value).__name__}: convert it to a plain tensor")
    if read(value, "dtype") is not target.dtype:
        have, want = short_dtype(read(value, "dtype")), short_dtype(target.dtype)
        raise Refusal(f"the value is {have}, the tensor {want}: convert it by .to()")
    if tuple(read(value, "shape")) != tuple(target.shape):
        raise Refusal(
            f"the value has shape {list(read(value, 'shape'))}, the place {list(target.shape)}"
        )
    if read(value, "device") != target.device:
        raise Refusal(f"the value is on {read(value, 'device')}, the tensor on {target.device}")


@unseen
def _write(target: Any, value: Any) -> None:
    torch = sys.modules["torch"]
    with torch.no_grad():
        if is_tensor(value):
            target.copy_(plain(value))
        else:
            target.fill_(value)


@unseen
def _consequence(tensor: Any, name: str) -> str:
    version = number(read(tensor, "_version") + 1)
    if not read(tensor, "requires_grad"):
        if not sys.modules["torch"].is_grad_enabled():
            return ""
        return (
            f"{name} was set in place, its version is {version} now. A backward through a graph "
            "that has saved it raises."
        )
    what = "the graph that" if not read(tensor, "is_leaf") else "a graph that has used it and"
    return (
        f"{name} requires a gradient: it was set without recording that, and its version is "
        f"{version} now. A backward through {what} needs the old value raises."
    )
