"""What was measured while the program stands still; forgotten when a thread goes on.

A tensor is known by identity, by a weak reference, and where it keeps one by its version: memory is
handed out again, so that pointer, version and shape together name another tensor within a few
steps (16 of 20 in a training loop). Inference tensors have no version and aren't kept. The console
may write through `.data`, which changes no version, so each of its lines clears all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from ..tensors import unseen, version_of
from .plain import call, gradient_of, is_tensor, read

T = TypeVar("T")

_MOST = 4096


class Cache:
    """By what it is about and of which value."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], tuple[weakref.ref[Any], Any, Any]] = {}

    def clear(self) -> None:
        """Something may have changed."""
        self._kept.clear()

    def get(self, what: str, value: Any, make: Callable[[Any], T]) -> T:
        """What `make` has made of `value`, or makes now."""
        key, state = (what, id(value)), _state(value)
        found = self._kept.get(key)
        if found is not None and found[0]() is value and found[1] == state:
            return found[2]
        made = make(value)
        try:
            reference = weakref.ref(value)
        except TypeError:
            return made
        if state is not None:
            if len(self._kept) >= _MOST:
                self._kept.clear()
            self._kept[key] = (reference, state, made)
        return made


@unseen
def _state(value: Any) -> Any:
    """What changes when the value does, as far as it says so; None if it doesn't."""
    if not is_tensor(value):
        return type(value)
    try:
        version = version_of(value)
        if version is None:
            return None
        gradient = gradient_of(value)
        return (
            version,
            read(value, "dtype"),
            tuple(read(value, "shape")),
            call(value, "storage_offset"),
            call(value, "stride"),
            read(value, "requires_grad"),
            id(gradient),
            None if gradient is None else version_of(gradient),
        )
    except (RuntimeError, ValueError):  # lazy, nested and sparse ones lack one of these
        return None
