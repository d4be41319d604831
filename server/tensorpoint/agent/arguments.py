"""The arguments of a call as an input specification: `x: f32[16, 3, 64, 64], mask: None`.

The same language that the shapes before a run are asked for in (docs/shapes.md), so that the next
trace of the file begins with what the program did.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any

from ..wire.dtypes import short_dtype
from .tensors import unseen

_LONGEST = 40
_MOST_ITEMS = 64


class _Unsaid(Exception):
    """A value that the language has no words for."""


@unseen
def specification(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """What a call passed, by the names of `forward`; "" if some of it can't be said."""
    try:
        given = inspect.signature(module.forward).bind(*args, **kwargs)
        return ", ".join(f"{name}: {_text(value)}" for name, value in given.arguments.items())
    except (_Unsaid, TypeError, ValueError):
        return ""


def _text(value: Any) -> str:
    if isinstance(value, sys.modules["torch"].Tensor):
        if value.is_nested:
            raise _Unsaid
        return f"{short_dtype(value.dtype)}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, (tuple, list, dict)) and len(value) > _MOST_ITEMS:
        raise _Unsaid
    if type(value) is tuple:
        return f"({' '.join(f'{_text(item)},' for item in value)})"
    if type(value) is list:
        return f"[{', '.join(map(_text, value))}]"
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return f"{{{', '.join(f'{key!r}: {_text(item)}' for key, item in value.items())}}}"
    if type(value) in (bool, int, float, type(None)):
        return repr(value)
    if type(value) is str and len(value) <= _LONGEST:
        return repr(value)
    raise _Unsaid
