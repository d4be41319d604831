"""What a call leaves behind for the next one, and how it is taken away again.

A module keeps the tables that it has made, `self.cache[size] = ...`, a function under `lru_cache`
its results: the code that makes them runs in the first call only, and has one run's sizes. Put back
to what it was before, each run is a first call.
"""

from __future__ import annotations

import functools
import gc
from typing import Any

import torch

_Wrapper: Any = type(functools.lru_cache(lambda: None))


class Kept:
    """The state of a module, and of the cached functions of a file, as it is now."""

    def __init__(self, module: Any, file: str) -> None:
        modules = module.modules() if isinstance(module, torch.nn.Module) else ()
        #: Dicts and lists that calls may change, and what was in them.
        self._held = [
            (held, held.copy())
            for each in modules
            for held in (vars(each), *vars(each).values())
            if type(held) in (dict, list, set)
        ]
        self._file = file
        self._functions: list[Any] | None = None

    def restore(self) -> None:
        """Put all back."""
        for held, before in self._held:
            if type(held) is list:
                held[:] = before
            else:
                held.clear()
                held.update(before)
        if self._functions is None:
            # A decorator of a library may hold it in a closure, so no name leads there.
            self._functions = [each for each in gc.get_objects() if self._is_of_file(each)]
        for function in self._functions:
            function.cache_clear()

    def _is_of_file(self, value: Any) -> bool:
        if type(value) is not _Wrapper:
            return False
        code = getattr(value.__wrapped__, "__code__", None)
        return code is not None and code.co_filename == self._file
