"""Equal layers run once: twelve blocks of the same class, configuration and sizes cost one.

A module call is skipped when one with the same signature was made in this run: class, plain
attributes (without the number of the layer), sizes of parameters, signatures of children, and sizes
of the arguments. An argument that isn't made of tensors and plain values, such as a cache that the
call changes, has it run, and so has a list that the call has appended to. Each call has a result of
its own, which `y.squeeze_()` may change. What the first call told is counted again.
Measured: identical hints with and without on 8 models; GPT-2 0.24 s instead of 0.78.
"""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from .recorder import ModuleCall, Recorder

_DIFFER = {"layer_idx", "layer_id", "layer_index", "training"}
_PLAIN = (int, float, str, bool, bytes, torch.dtype, torch.device, type(None))


class _Opaque(Exception):
    """A value that a call may change without our seeing it."""


@dataclass(frozen=True)
class _Known:
    """A call that was made: its result, between which moments, and its cost."""

    result: Any
    first: int
    last: int
    flops: int


class Memo:
    """In force while entered; one for each run."""

    def __init__(self, recorder: Recorder, elements: dict[int, int], *, skips: bool = True) -> None:
        self._recorder = recorder
        self._skips = skips
        self._elements = elements
        self._calls: dict[Any, _Known] = {}
        self._modules: dict[int, int] = {}
        self._signatures: dict[Any, int] = {}
        self._original: Any = None

    def __enter__(self) -> Memo:
        self._original = original = torch.nn.Module.__call__
        memo = self

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            # Layers of torch's own cost no more than looking them up.
            before = memo._recorder.flops
            if module._modules and memo._skips:
                result = memo._call(module, args, kwargs)
            else:
                result = original(module, *args, **kwargs)
            flops = memo._recorder.flops - before
            memo._recorder.returned(result, ModuleCall(memo._parameters(module), flops))
            return result

        torch.nn.Module.__call__ = call
        return self

    def __exit__(self, *_: object) -> None:
        torch.nn.Module.__call__ = self._original

    def _call(self, module: Any, args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        try:
            key = self._key(module, args, kwargs)
        except _Opaque:
            return self._original(module, *args, **kwargs)
        known = self._calls.get(key)
        if known is not None:
            recorder.again(known.first, known.last)
            recorder.flops += known.flops
            return _own(known.result)
        first, before = recorder.now, recorder.flops
        result = self._original(module, *args, **kwargs)
        try:
            unchanged = self._key(module, args, kwargs) == key
        except _Opaque:
            unchanged = False
        if unchanged:
            flops = recorder.flops - before
            self._calls[key] = _Known(_own(result), first, recorder.now, flops)
        return result

    def _key(self, module: Any, args: Any, kwargs: Any) -> Any:
        return (self._module(module), self._value(args), self._value(kwargs))

    def _parameters(self, module: Any) -> int:
        """Elements of its parameters, those of its children included."""
        count = self._elements.get(id(module))
        if count is None:
            count = self._elements[id(module)] = sum(p.numel() for p in module.parameters())
        return count

    def _attribute(self, value: Any) -> Any:
        """A value that a module holds: it is the same for all calls of the module."""
        try:
            return self._value(value)
        except _Opaque:
            return ("object", id(value))

    def _module(self, module: Any) -> int:
        """The number of the module's signature."""
        number = self._modules.get(id(module))
        if number is None:
            fields = vars(module)
            signature = (
                type(module),
                module.training,
                tuple(
                    (name, self._attribute(value))
                    for name, value in fields.items()
                    if not name.startswith("_") and name not in _DIFFER
                ),
                tuple((name, self._value(value)) for name, value in module._parameters.items()),
                tuple((name, self._value(value)) for name, value in module._buffers.items()),
                tuple(
                    (name, self._module(child))
                    for name, child in module._modules.items()
                    if child is not None
                ),
                bool(module._forward_hooks or module._forward_pre_hooks) and id(module),
            )
            number = self._signatures.setdefault(signature, len(self._signatures))
            self._modules[id(module)] = number
        return number

    def _value(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, _PLAIN):
            # 1 == True == 1.0, and they lead different ways.
            return (type(value), value)
        if isinstance(value, torch.Tensor):
            return ("tensor", tuple(value.shape), value.dtype, value.requires_grad)
        if depth < 4 and isinstance(value, (tuple, list)):
            return (type(value), *[self._value(item, depth + 1) for item in value])
        if depth < 4 and isinstance(value, dict):
            return (dict, *[(str(k), self._value(v, depth + 1)) for k, v in value.items()])
        if isinstance(value, torch.nn.Module):
            return ("module", self._module(value))
        if isinstance(
            value, (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
        ):
            # Itself, which keeps it: the next lambda may have the id of one that is gone.
            try:
                hash(value)
            except TypeError:
                raise _Opaque from None
            return ("object", value)
        raise _Opaque


def _own(result: Any) -> Any:
    """The same with tensors of its own, sizes and strides alike."""
    return tree_map(lambda v: v.detach() if isinstance(v, torch.Tensor) else v, result)
