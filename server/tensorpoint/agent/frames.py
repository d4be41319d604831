"""Which frame of the program is behind what we see in a hook."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from . import debugger_files, debugger_threads
from .modules import frame_of_call

if TYPE_CHECKING:
    from torch.nn import Module

AGENT_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_CALL_NAMES = frozenset({"__call__", "_call_impl", "_wrapped_call_impl", "inner"})
#: Library files below the program's first frame.
_THREAD_STARTERS = frozenset(
    {threading.__file__, os.path.join(os.path.dirname(os.__file__), "runpy.py")}
)


def short_file(file: str) -> str:
    """How a text names a file: without its folders, and a cell of a notebook as IPython does.

    The file of a cell is named by a hash, which says nothing to who sees "In [5]" beside it.
    """
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    compiler = getattr(ask(), "compile", None) if ask is not None else None
    label = getattr(compiler, "format_code_name", lambda _: None)(file)
    return " ".join(label) if label else os.path.basename(file)


def calling_frame(module: Module | None) -> FrameType | None:
    """The frame outside torch that called `module`, searched from the hook we run in.

    Without a module: the nearest one, such as that of the line with `backward()`; on a thread of
    autograd's that of the thread which waits there.
    """
    here = _outside_of_taps(
        sys._getframe(1)
    )  # not this one: a frame that holds itself would keep all it sees
    start = None if module is None else frame_of_call(module, here)
    outside = [frame for frame in outwards(start or here) if not is_internal(frame)]
    for frame in outside:
        if module is None or not _passes_on(frame, module):
            return frame
    return outside[-1] if outside else debugger_threads.waiting_frame()


def _outside_of_taps(frame: FrameType) -> FrameType:
    """The call of the tapped function, where an adapter told of it; else the same frame.

    Between our own frames and that call there are only the adapter's.
    """
    told = False
    for outer in outwards(frame):
        code = outer.f_code
        ours = code.co_filename.startswith(AGENT_FOLDER)
        told = told or (ours and code.co_filename.endswith("taps.py"))
        if not ours and not told:
            return frame
        if ours and code.co_name == "replacement":
            return outer
    return frame


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_internal(frame: FrameType) -> bool:
    """Whether it runs torch's code, ours or the debugger's."""
    return is_internal_code(frame.f_code)


def is_internal_code(code: CodeType) -> bool:
    """The same of code."""
    return is_internal_file(code.co_filename)


def is_internal_file(name: str) -> bool:
    """The same of a file."""
    torch: Any = sys.modules["torch"]
    return _is_internal_file(name, torch.__file__, debugger_files.folder())


@lru_cache(4096)
def _is_internal_file(name: str, torch_file: str | None, debugger: str) -> bool:
    torch_folder = os.path.dirname(torch_file or "") + os.sep
    inside = (torch_folder, AGENT_FOLDER, debugger, "<frozen ", "<eval_with_key>")
    return name.startswith(inside) or name in _THREAD_STARTERS


def _passes_on(frame: FrameType, module: Module) -> bool:
    return frame.f_code.co_name in _CALL_NAMES and frame.f_locals.get("self") is module
