"""Threads that C code started (autograd's): whose stack they go on with, and who takes their steps.

Touches pydevd, which knows such a thread as one of its own with a short stack.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


def _nobody_waits() -> FrameType | None:
    return None


_waiting_frame: Callable[[], FrameType | None] = _nobody_waits


def continue_stacks(waiting: Callable[[], FrameType | None]) -> None:
    """Let `waiting` tell, on a thread without a program of its own, the frame that waits for it."""
    global _waiting_frame  # noqa: PLW0603 - one agent per process
    _waiting_frame = waiting


def waiting_frame() -> FrameType | None:
    """On a thread of autograd's the frame of the program that waits for it; else None."""
    return _waiting_frame()


def wrap_stacks() -> None:
    """Continue the stack of a thread of autograd's by that of the thread which waits for it."""
    utils: Any = sys.modules.get("_pydevd_bundle.pydevd_frame_utils")
    original = getattr(utils, "create_frames_list_from_frame", None)
    if original is None or hasattr(original, "tensorpoint"):
        return

    def create_frames_list_from_frame(frame: FrameType | None) -> Any:
        frames = original(frame)
        waiting = _waiting_frame()
        if waiting is not None and waiting not in [*frames]:
            while waiting is not None:
                frames.append(waiting)
                waiting = waiting.f_back
        return frames

    create_frames_list_from_frame.tensorpoint = True  # type: ignore[attr-defined]
    utils.create_frames_list_from_frame = create_frames_list_from_frame


def thread_of(frame: FrameType) -> threading.Thread | None:
    """The thread whose stack `frame` is on: for a stop on autograd's thread, the one that waits."""
    tops = sys._current_frames()
    idents = [threading.get_ident(), *tops]
    for ident in idents:
        other = tops.get(ident)
        while other is not None and other is not frame:
            other = other.f_back
        if other is not None:
            return next((item for item in threading.enumerate() if item.ident == ident), None)
    return None


def hand_step_over(
    db: Any, info: Any, owner_info: Any, owner: threading.Thread, frame: FrameType
) -> None:
    """The step that the user takes from `frame` is one of the thread that runs it.

    The stopped thread has no frame that would ever reach another line; it goes on running.
    """
    if info.pydev_step_cmd == -1:
        return
    owner_info.pydev_original_step_cmd = info.pydev_original_step_cmd
    owner_info.pydev_step_cmd = info.pydev_step_cmd
    owner_info.pydev_step_stop = frame
    owner_info.update_stepping_info()
    info.pydev_original_step_cmd = info.pydev_step_cmd = -1
    info.pydev_step_stop = None
    info.update_stepping_info()
    db.set_trace_for_frame_and_parents(owner.ident, frame)


def step_by(db: Any, waiting: FrameType, thread: threading.Thread | None) -> None:
    """Let a step of `thread`, if it leaves its own code, end on the thread that waits for it.

    None takes that back, since it has ended before. Nothing but the step over of pydevd's own is
    used: stepping a thread that waits by a request would wait for it for good.
    """
    from _pydevd_bundle.pydevd_additional_thread_info import (  # type: ignore[import-not-found]
        set_additional_thread_info,
    )
    from _pydevd_bundle.pydevd_comm_constants import (  # type: ignore[import-not-found]
        CMD_STEP_OVER_MY_CODE,
    )

    owner = thread_of(waiting)
    if owner is None:
        return
    info = set_additional_thread_info(owner)
    stepping = thread is not None and set_additional_thread_info(thread).pydev_step_cmd != -1
    info.pydev_original_step_cmd = info.pydev_step_cmd = CMD_STEP_OVER_MY_CODE if stepping else -1
    info.pydev_step_stop = waiting if stepping else None
    info.update_stepping_info()
    if stepping:
        db.set_trace_for_frame_and_parents(owner.ident, waiting)
