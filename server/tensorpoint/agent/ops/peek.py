"""Reading values without running anything of the program: no property, no `__getattr__`."""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any, Final


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


#: The value of an expression that cannot be had without running something.
UNKNOWN: Final = _Unknown()

#: Attributes of a tensor that are views or facts: reading them runs nothing of the program's.
_OF_TENSORS = frozenset({"T", "mT", "data", "grad", "shape", "dtype", "device", "requires_grad"})


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of the program's torch."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    return tensor is not None and isinstance(value, tensor)


def is_module(value: Any) -> bool:
    """Whether it is a module of the program's torch."""
    nn = sys.modules.get("torch.nn")
    module = getattr(nn, "Module", None)
    return module is not None and isinstance(value, module)


def attribute(owner: Any, name: str) -> Any:
    """An attribute, if it can be had without running anything of the program; else UNKNOWN."""
    if isinstance(owner, types.ModuleType):
        return vars(owner).get(name, UNKNOWN)
    if is_tensor(owner) and name in _OF_TENSORS:
        return getattr(owner, name) if _is_plain(owner) else UNKNOWN
    if is_module(owner):
        for table in ("_parameters", "_buffers", "_modules"):
            found = vars(owner).get(table)
            if isinstance(found, dict) and name in found:
                return found[name]
    found = inspect.getattr_static(owner, name, UNKNOWN)
    if isinstance(found, types.MemberDescriptorType) or type(found).__name__ == "_tuplegetter":
        return found.__get__(owner, type(owner))
    if isinstance(found, (staticmethod, classmethod)):
        return found.__func__
    is_function = isinstance(found, (types.FunctionType, types.BuiltinFunctionType))
    is_method = isinstance(found, (types.MethodDescriptorType, types.WrapperDescriptorType))
    if is_function or is_method or isinstance(owner, type):
        return found
    held = type(found)
    return UNKNOWN if hasattr(held, "__get__") else found


def element_of(owner: Any, key: Any) -> Any:
    """An element_of, if it can be had without running anything of the program; else UNKNOWN."""
    torch = sys.modules.get("torch")
    if type(owner) in (list, tuple):
        return owner[key] if type(key) is int and -len(owner) <= key < len(owner) else UNKNOWN
    if isinstance(owner, dict) and type(owner).__getitem__ is dict.__getitem__:  # pyright: ignore[reportUnknownMemberType]
        return dict.get(owner, key, UNKNOWN)
    if is_module(owner) and torch is not None:
        containers = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)
        children = vars(owner).get("_modules")
        if isinstance(owner, containers) and isinstance(children, dict):
            if type(key) is int:
                values = list(children.values())
                return values[key] if -len(values) <= key < len(values) else UNKNOWN
            return children.get(key, UNKNOWN)
        return UNKNOWN
    if is_tensor(owner) and _is_plain(owner) and _is_static_index(key):
        return owner[key]
    return UNKNOWN


def _is_static_index(key: Any) -> bool:
    parts = key if type(key) is tuple else (key,)
    return all(type(part) is int or part is None or part is ... for part in parts)


def _is_plain(tensor: Any) -> bool:
    """Whether looking at it runs torch's code only: no subclass, no mode of the program's."""
    torch: Any = sys.modules["torch"]
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and not torch._C._len_torch_function_stack()
        and not torch._C._len_torch_dispatch_stack()
    )
