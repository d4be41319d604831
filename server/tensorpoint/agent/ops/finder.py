"""Waits for an operation that was found before, in a second run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from ..tensors import has_nonfinite
from .dispatch import dispatch_mode, named, numbers_of, outputs_of, storage_of, tensors_of


class Finder:
    """Waits for the operation with a given address: the `number`-th bad result of `full_name`.

    `at_once` is called while it is still running.
    """

    def __init__(
        self,
        full_name: str,
        number: int,
        on_write: Callable[[Any, bool], None],
        at_once: Callable[[], None] | None = None,
    ) -> None:
        self._full_name = full_name
        self._left = number
        self._on_write = on_write
        self._at_once = at_once
        self._own_storages: set[int] = set()
        self.found = False

    def mode(self) -> AbstractContextManager[Any]:
        """While it is on, operations of this thread are counted."""
        return dispatch_mode(self._run, again=True)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = named(func, args, kwargs)
        for name in arguments.written:
            for tensor in tensors_of(arguments.by_name[name]):
                self._on_write(tensor, storage_of(tensor) in self._own_storages)
        result = func(*args, **kwargs)
        outputs = outputs_of(result, arguments)
        self._own_storages.update(storage_of(output) for output in outputs)
        if not self.found and str(func) == self._full_name:
            for output in outputs:
                if numbers_of(output) is not None and has_nonfinite(output):
                    self.found |= self._left == 0
                    self._left -= 1
            if self.found and self._at_once is not None:
                self._at_once()
        return result
