"""What the statements of a script may call: what computes, and nothing that does.

A script is run to see the shapes in it, so models, functions of torch and the like are called; what
trains, writes, reads, fetches or prints is not, and neither is what nobody knows. That is told by
what is called, at the time of the call, and not by how it is written.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import inspect
import types
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

#: What becomes of a call: it is made; its result is not known; it does nothing; it makes a module.
Verdict = Literal["call", "unknown", "nothing", "make"]

_BUILTINS = {
    "abs", "all", "any", "bool", "bytes", "callable", "chr", "complex", "dict", "divmod", "filter",
    "float", "format", "frozenset", "getattr", "hasattr", "hash", "id", "int", "isinstance",
    "issubclass", "len", "list", "map", "max", "min", "object", "ord", "pow", "range", "repr",
    "reversed", "round", "set", "slice", "sorted", "str", "sum", "tuple", "type",
}  # fmt: skip
_PLAIN = (
    int, float, complex, str, bytes, list, tuple, dict, set, frozenset, range, collections.deque,
)  # fmt: skip
#: Packages that compute, or say what is so.
_PACKAGES = {
    "argparse", "collections", "contextlib", "copy", "dataclasses", "datetime", "einops", "enum",
    "functools", "itertools", "jaxtyping", "math", "numbers", "numpy", "operator", "posixpath",
    "ntpath", "random", "re", "string", "time", "types", "typing",
}  # fmt: skip
_TORCH = (
    "torch._C", "torch._tensor", "torch.autograd.grad_mode", "torch.distributions", "torch.fft",
    "torch.functional", "torch.linalg", "torch.nn.functional", "torch.nn.init", "torch.nn.modules",
    "torch.nn.parameter", "torch.nn.utils", "torch.random", "torch.special",
    "torch.utils._contextlib", "torch.utils.data",
)  # fmt: skip
#: In the packages above.
_NEVER = {
    "DataSource", "FileType", "compile", "dump", "fromfile", "genfromtxt", "load", "loadtxt",
    "memmap", "methodcaller", "numpy", "open_memmap", "save", "savetxt", "savez",
    "savez_compressed", "share_memory", "share_memory_", "sleep", "tofile",
}  # fmt: skip
#: What all modules have, and some libraries have their own of.
_MODULES = {
    "bfloat16", "children", "cpu", "cuda", "double", "eval", "float", "half", "modules",
    "named_modules", "named_parameters", "parameters", "requires_grad_", "state_dict", "to",
    "train", "zero_grad",
}  # fmt: skip
#: What makes a module: of a class, and of a library of models.
_MAKERS = {"from_config", "from_pretrained", "_from_config"}
#: What configurations have beside.
_KEEPING = ("push", "save", "to_json_file", "write")
_MODELS = ("timm.models", "torchvision.models")
_LIBRARIES = ("timm", "torchvision", "transformers")
_DATA = (DataLoader, Dataset, Sampler)


def verdict(function: Any, module: str) -> Verdict:
    """What becomes of a call of something, in the file that is `module`.

    Functions of the file itself are for others to look into.
    """
    name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
    if isinstance(function, torch.nn.Module):
        return "call"
    if isinstance(function, functools.partial):
        return verdict(function.func, module)
    if isinstance(function, type):
        return _class(function, module)
    if isinstance(owner, torch.Tensor):
        return "nothing" if name == "backward" else _unless_never(name)
    if isinstance(owner, torch.nn.Module):
        inherited = getattr(type(owner), name, None) is getattr(torch.nn.Module, name, owner)
        known = inherited or name in _MODULES or name == "forward"
        return _unless_never(name) if known else "unknown"
    home = _home(function)
    if isinstance(owner, type) and name in _MAKERS:
        if issubclass(owner, torch.nn.Module) or owner.__name__.startswith("AutoModel"):
            return "make"
    if owner is not None and getattr(owner, "__name__", type(owner).__name__).endswith("Config"):
        return "unknown" if name.startswith(_KEEPING) else "call"
    if isinstance(owner, (*_PLAIN, argparse.ArgumentParser, argparse.Namespace)):
        return "call"
    return _function(function, name, home)


def _function(function: Any, name: str, home: str) -> Verdict:
    if home.startswith(_MODELS) or (name == "create_model" and home.startswith(_LIBRARIES)):
        return "make"
    if home == "builtins":
        return "call" if name in _BUILTINS else "unknown"
    if name in ("set_default_dtype", "set_default_tensor_type", "is_available", "device_count"):
        return "call" if home.startswith("torch") else "unknown"
    if name.startswith(("set_", "use_")):
        return "unknown"
    root = home.partition(".")[0]
    if root in _PACKAGES or home == "torch" or home.startswith(_TORCH):
        return _unless_never(name)
    return "unknown"


def _class(kind: type, module: str) -> Verdict:
    home, name = kind.__module__, kind.__name__
    if issubclass(kind, torch.nn.Module):
        return "make"
    if issubclass(kind, _DATA):
        return "call" if home.startswith("torch.") else "unknown"
    if issubclass(kind, BaseException) or name.endswith("Config"):
        return "call"
    if home == "builtins":
        return "call" if name in _BUILTINS else "unknown"
    if home == module:
        plain = dataclasses.is_dataclass(kind) or kind.__init__ is object.__init__
        return "call" if plain or issubclass(kind, tuple) else "unknown"
    root = home.partition(".")[0]
    if root in _PACKAGES or home == "torch" or home.startswith((*_TORCH, "pathlib")):
        return _unless_never(name)
    return "unknown"


def _unless_never(name: str) -> Verdict:
    return "unknown" if name in _NEVER or name.startswith("register_") else "call"


def _home(function: Any) -> str:
    """The module that a function is of; of a method, that of what it belongs to."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, types.ModuleType):
        return owner.__name__
    home = getattr(function, "__module__", None)
    if isinstance(home, str) and home:
        return home
    if owner is None:
        owner = getattr(function, "__objclass__", None)
    if owner is None:
        return ""
    kind: Any = owner if inspect.isclass(owner) else type(owner)
    return kind.__module__
