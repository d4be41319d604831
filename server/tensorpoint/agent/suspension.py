"""Suspended threads as pydevd and the client know them; `debugger` is the other module that does.

Who wants to hear of suspensions, whoever asked for them, subscribes in `debugger.on_suspension`.
"""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType
from typing import Any

_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


def dap_thread_id() -> int:
    """The id that this thread has for the client; 0 without a debugger."""
    schema = sys.modules.get("_pydevd_bundle._debug_adapter.pydevd_base_schema")
    constants = sys.modules.get("_pydevd_bundle.pydevd_constants")
    if schema is None or constants is None:
        return 0
    known = constants.get_thread_id(threading.current_thread())
    return int(schema.BaseSchema._translate_id_to_dap(known))


def dap_frame_id(frame: FrameType) -> int:
    """The id that a frame of a suspended thread has for the client; 0 without a debugger."""
    schema = sys.modules.get("_pydevd_bundle._debug_adapter.pydevd_base_schema")
    return 0 if schema is None else int(schema.BaseSchema._translate_id_to_dap(id(frame)))


def resume() -> None:
    """Let all threads go on, as `continue` does; this one, when its evaluation is done."""
    lifecycle = sys.modules.get("_pydevd_bundle.pydevd_thread_lifecycle")
    if lifecycle is not None:
        lifecycle.resume_threads("*")


def is_library(path: str) -> bool:
    """Whether a file was installed rather than written by the user, told by its path."""
    parts = path.replace("\\", "/").split("/")
    return bool({"site-packages", "dist-packages"} & set(parts)) or path.startswith(
        _STANDARD_LIBRARY
    )


def set_locals(frame: FrameType, values: dict[str, Any]) -> None:
    """Give local names of a running frame other values."""
    frame.f_locals.update(values)
    if sys.version_info >= (3, 13):  # f_locals writes through
        return
    import ctypes

    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
