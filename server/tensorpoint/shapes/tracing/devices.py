"""Operands on two devices, without a second device: the meta device plays the accelerator.

The module is made once more, with what its constructor makes on the CPU; parameters and buffers
move to "cuda:0", as `.to("cuda")` does, and so are the inputs there. What stays behind is what real
programs stumble over: plain attributes that are no buffers, and `torch.zeros(...)` in `forward`
without a device. Everything that names a device is taken to mean the accelerator (which one a
`device` variable would hold there isn't known here), so that only what names none is blamed.

FakeTensor does nearly that, but its CUDA tensors can't be indexed by a torch without CUDA. Files
that don't speak of devices are left alone, and those that use several.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...wire.shapes import ShapeDiagnostic, Span
from .errors import operand_values, place_of, shape_text
from .inputs import Sizes, make
from .modes import Assumptions, Deadline, WithoutValues
from .probing import Probed
from .real import too_large
from .source import FileModule

_ATEN = torch.ops.aten
_SPEAKS = re.compile(r"\.cuda\(|[\"'](?:cuda|mps|xpu)\b|\baccelerator\b|\.to\(device\)")
_SEVERAL = re.compile(r"cuda:[1-9{]|set_default_|device_map|device_ids|offload|\bdevice\(f")
_TENSOR: Any = torch.Tensor  # whose attributes are descriptors
_META = torch.device("meta")
_PLAYED = torch.device("cuda", 0)
#: What takes tensors of two devices.
_MIXES = {
    _ATEN.copy_.default,
    _ATEN._to_copy.default,
    _ATEN.set_.source_Tensor,
    _ATEN._local_scalar_dense.default,
}
_INDEXES = {_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default}
#: Said by kernels that look before they run.
_DEVICES = re.compile(r"(same|two) devices?\b.*\b(meta|cpu)\b")
_SECONDS = 5.0


class _Mixed(Exception):
    """An operation had operands on two devices."""


class _Unknown(BaseException):
    """A tensor is from elsewhere: where it would be there is not known."""


class _Played(TorchFunctionMode):
    """Has the meta device look like the accelerator."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name, first = getattr(func, "__name__", ""), args[0] if args else None
        if name == "__get__" and isinstance(first, torch.Tensor):
            answer = _ATTRIBUTES.get(func)
            if answer is not None:
                return answer(func(first), _TENSOR.is_meta.__get__(first))
        if name == "cpu" and isinstance(first, torch.Tensor):
            return torch.zeros(first.shape, dtype=first.dtype, device="cpu")
        if name == "cuda" and isinstance(first, torch.Tensor):
            return first.to(_META)
        if kwargs.get("device") is not None:
            kwargs["device"] = _META
        if name == "to" and len(args) > 1:
            named = isinstance(args[1], (str, torch.device))
            args = (first, _META, *args[2:]) if named else args
        return func(*args, **kwargs)


_ATTRIBUTES: dict[Any, Any] = {
    _TENSOR.device.__get__: lambda device, is_meta: _PLAYED if is_meta else device,
    _TENSOR.is_cuda.__get__: lambda _, is_meta: is_meta,
    _TENSOR.is_meta.__get__: lambda _, is_meta: False,
}


class _Checked(TorchDispatchMode):
    """Raises `_Mixed`. `born` are the tensors that the module or its call has made on the CPU."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see `modes.WithoutValues`

    def __init__(self) -> None:
        super().__init__()
        self._born: dict[int, Any] = {}

    def made(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Whether those of them that are on the CPU are all born here."""
        return all(each.is_meta or id(each) in self._born for each in tensors)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        moved = [v for v in tensors if v.is_meta]
        stayed = [v for v in tensors if not v.is_meta]
        if func in _INDEXES and args[0].is_meta:
            values = [args[2]] if len(args) > 2 else []
            stayed = [v for v in values if not v.is_meta]  # indices may be on the CPU
        operands = [v for v in stayed if v.dim() > 0]
        if moved and operands and func not in _MIXES:
            if not self.made(operands):
                raise _Unknown
            raise _Mixed("Expected all tensors to be on the same device, found cuda:0 and cpu")
        if func is _ATEN.copy_.default and moved and not tensors[0].is_meta:
            return tensors[0]
        value = func(*args, **(kwargs or {}))
        known = self.made(stayed) or func is _ATEN.lift_fresh.default
        for each in tree_leaves(value):
            if known and isinstance(each, torch.Tensor) and not each.is_meta:
                self._born[id(each)] = each
        return value


def device_faults(probed: Probed, file: FileModule) -> Iterator[ShapeDiagnostic]:
    """The first call that would fail on an accelerator, if it does at other sizes too."""
    text, target = file.source.text, probed.target
    if not _SPEAKS.search(text) or _SEVERAL.search(text) or too_large(target):
        return
    kinds = {type(each) for each in target.module.modules()}
    if any({"_apply", "to", "cuda"} & vars(kind).keys() for kind in kinds if _own(kind)):
        return  # it moves by itself what is left behind here
    found = [_place(probed, file, each.sizes) for each in probed.runs[:2]]
    places = [each[0] if each is not None else None for each in found]
    if found[0] is not None and len({*places}) == 1:
        span, message = found[0]
        yield ShapeDiagnostic(
            file.source.in_characters(span), "warning", "device-mismatch", message
        )


def _own(kind: type) -> bool:
    return not kind.__module__.startswith("torch.")


def _place(probed: Probed, file: FileModule, sizes: Sizes) -> tuple[Span, str] | None:
    """Where operands on two devices meet, and what is to be said of it."""
    target = probed.target
    checked, answers = _Checked(), WithoutValues(Assumptions(file.source.path))
    try:
        with torch.device("meta"):
            positional, keywords = make(target.inputs, sizes)
        limit = Deadline(time.monotonic() + _SECONDS)
        with limit, _Played(), answers, checked, torch.no_grad():
            module: Any = eval(compile(target.constructor, "<constructor>", "eval"), file.namespace)
            _move(module.eval())
            module(*positional, **keywords)
    except BaseException as error:  # of another kind: what can't run this way is not to be judged
        span = place_of(error, file.source)
        if span is None or not (isinstance(error, _Mixed) or _DEVICES.search(str(error))):
            return None
        values = operand_values(error, span, file.source)
        if isinstance(error, _Mixed) or checked.made(values.values()):
            return span, _message(values)
    return None


def _move(module: torch.nn.Module) -> None:
    """What `.to("cuda")` moves."""
    for each in module.modules():
        for name, parameter in each._parameters.items():
            if parameter is not None:
                moved = torch.empty_like(parameter, device=_META)
                each._parameters[name] = torch.nn.Parameter(moved, requires_grad=False)
        for name, buffer in each._buffers.items():
            if buffer is not None:
                each._buffers[name] = torch.empty_like(buffer, device=_META)


def _message(values: dict[str, torch.Tensor]) -> str:
    behind = {name: v for name, v in values.items() if not v.is_meta and v.dim() > 0}
    others = [name for name, v in values.items() if v.is_meta]
    names = ", ".join(f"{name}: {shape_text(v)}" for name, v in behind.items())
    with_model = f", {', '.join(others)} with the model" if others else ""
    if any(name.startswith("self.") for name in behind):
        advice = "Make it a buffer, with register_buffer"
    else:
        advice = "Make it where the others are, with device=..."
    what = f"{names} is on the CPU{with_model}" if names else "one operand is on the CPU"
    return f"on a GPU this fails: {what}. {advice}"
