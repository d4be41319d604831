"""A value that could not be had: what is done with it is not known either, and breaks nothing.

Attributes, items, calls and operators of it are unknown; where Python itself has to know, such as
in `if`, it raises `Skip`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

#: Where expressions of scripts are evaluated.
_EVALUATING = {str(Path(__file__).with_name(name)) for name in ("scripts.py", "values.py")}
_CALL = torch.nn.Module._call_impl.__code__
_SCALAR = torch.ops.aten._local_scalar_dense.default
_CONTAINERS = (list, tuple, set, frozenset)
_DEEPEST = 3


class Skip(BaseException):
    """A statement can't be run without a value that is not known."""


class NoNumbers(TorchDispatchMode):
    """What a script asks of the values of tensors, other than truth, is not known: `Skip`.

    `data[i : i + 8]` with an `i` of a tensor would be empty with what `modes` assumes, where a run
    has 8. Models ask for such numbers too, and keep what is assumed there.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see `modes.WithoutValues`

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is _SCALAR and args[0].dtype is not torch.bool and not _in_a_model():
            raise Skip
        return func(*args, **(kwargs or {}))


def _in_a_model() -> bool:
    """Whether a model has been called since an expression of the script was begun."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename not in _EVALUATING:
        if frame.f_code is _CALL:
            return True
        frame = frame.f_back
    return False


class Unknown:
    """See above. There is one, `UNKNOWN`, but for those that are looped over."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return UNKNOWN

    def __setattr__(self, name: str, value: object) -> None:
        """It stays what it is."""

    def _same(self, *_: object, **__: object) -> Any:
        return UNKNOWN

    __call__ = __getitem__ = __enter__ = _same
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = _same
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _same
    __pow__ = __rpow__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _same
    __neg__ = __pos__ = __invert__ = __abs__ = __lt__ = __le__ = __gt__ = __ge__ = _same
    __eq__ = __ne__ = _same  # pyright: ignore[reportAssignmentType]
    __hash__ = object.__hash__

    def __setitem__(self, key: object, value: object) -> None:
        """It stays what it is."""

    def __exit__(self, *_: object) -> None:
        """What is raised goes on."""

    def _needed(self, *_: object) -> Any:
        raise Skip

    __bool__ = __iter__ = __len__ = __index__ = __int__ = __float__ = __contains__ = _needed

    def __repr__(self) -> str:
        return "?"

    def __format__(self, spec: str, /) -> str:
        return "?"

    @classmethod
    def __torch_function__(cls, *_: object, **__: object) -> Any:
        return UNKNOWN


UNKNOWN = Unknown()


class Sampled(Unknown):
    """What is looped over more often than is worth it, such as a loader: its first item."""

    __slots__ = ("item",)
    item: Any

    def __init__(self, item: Any) -> None:
        object.__setattr__(self, "item", item)


class Shut(Unknown):
    """A context that changes dtypes in a way that is not known: nothing is run in it."""

    __slots__ = ()

    def __enter__(self) -> Any:
        raise Skip

    def __call__(self, *_: object, **__: object) -> Any:
        return self


SHUT = Shut()


def has_unknown(value: Any, depth: int = 0) -> bool:
    """Whether a value is unknown, or has an unknown one among its items."""
    if isinstance(value, Unknown):
        return True
    if depth < _DEEPEST and isinstance(value, _CONTAINERS):
        return any(has_unknown(item, depth + 1) for item in value)
    if depth < _DEEPEST and isinstance(value, dict):
        return any(has_unknown(item, depth + 1) for item in value.values())
    return False


#: How names are unpacked: None for one of them, a tuple for several.
Pattern = tuple["Pattern", ...] | None


def spread(value: Any, pattern: Pattern) -> Any:
    """The value so that it can be unpacked: `x, y = UNKNOWN` gives two."""
    if pattern is None:
        return value
    if isinstance(value, Unknown):
        return tuple(spread(UNKNOWN, each) for each in pattern)
    if isinstance(value, (tuple, list)) and len(value) == len(pattern):
        return tuple(spread(item, each) for item, each in zip(value, pattern))
    return value
