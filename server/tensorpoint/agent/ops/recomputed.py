"""What torch's activation checkpoints compute again in a backward pass.

Touches what `torch.utils.checkpoint` keeps to itself.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from threading import get_ident
from typing import Any

#: Numbers that no backward pass has, nor what runs outside of any (-1).
_TASKS = count(-2, -1)


def is_reentrant(node: Any) -> bool:
    """Whether an autograd node is a reentrant checkpoint's: it runs a backward in its own."""
    function = getattr(type(node), "_forward_cls", None)
    return getattr(function, "__module__", None) == "torch.utils.checkpoint"


@contextmanager
def unpacked_again() -> Generator[None]:
    """Let this thread have once more what nodes of other checkpoints have saved.

    They give each tensor once in a backward pass, known by its number; in another they compute
    their forward again.
    """
    inside, ident, task = sys.modules["torch"]._C, get_ident(), next(_TASKS)
    original = inside._current_graph_task_id

    def current_graph_task_id() -> int:
        return task if get_ident() == ident else original()

    inside._current_graph_task_id = current_graph_task_id
    try:
        yield
    finally:
        inside._current_graph_task_id = original
