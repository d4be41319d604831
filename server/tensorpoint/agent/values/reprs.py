"""How an object's own `repr` writes the tensors in it: a named tuple's, a partial's, the program's.

In a row each is its line: torch's own `repr` would copy what is on a device to the host and wait
for that, and be a wall of numbers for the rest. In the console it is torch's own, of no more
elements than are shown of it, whatever the program's print options are.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

from .kinds import tensor_line
from .plain import is_on_cpu, shape_of, torch_type

#: Elements in torch's own `repr`: pydevd cuts at 65,536 characters.
_MOST = 10_000


def in_short() -> AbstractContextManager[Any]:
    """On this thread tensors are written by their lines."""
    mode = getattr(sys.modules.get("torch.overrides"), "TorchFunctionMode", None)
    if mode is None or torch_type("Tensor") is None:  # torch is not imported, or not as a whole
        return nullcontext()
    return _in_short(mode)()


def bounded() -> AbstractContextManager[Any]:
    """Tensors are written as torch does it, with most elements left out where there are many."""
    printing = sys.modules.get("torch._tensor_str")
    options = getattr(printing, "PRINT_OPTS", None)
    if printing is None or options is None or options.threshold <= _MOST:
        return nullcontext()
    return printing.printoptions(threshold=_MOST)


@lru_cache(maxsize=1)
def _in_short(mode: Any) -> Any:
    torch = sys.modules["torch"]

    class InShort(mode):
        """Comes before what a subclass makes of it."""

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.Tensor.__repr__ or (
                func is torch.Tensor.__format__ and not _is_number_here(args[0])
            ):
                return tensor_line(args[0])
            return func(*args, **(kwargs or {}))

    return InShort


def _is_number_here(tensor: Any) -> bool:
    return is_on_cpu(tensor) and shape_of(tensor) == ()
