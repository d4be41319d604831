"""Hears of the return of a frame that runs already.

torch decides at the entry of a module whether it has hooks to run. One that was entered before we
installed any takes the path without, so that its exit is seen by nobody but the interpreter. On
Python 3.12 that is told by `sys.monitoring`, under a tool id of our own; before, by a trace
function on that one frame, which the interpreter calls since the debugger traces the thread.
"""

from __future__ import annotations

import opcode
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

#: Called with the frame and what it returns; not if it ends with an exception.
OnReturn = Callable[[FrameType, Any], None]
#: One of the ids that are nobody's by convention.
_TOOL_ID = 4
_RETURN = opcode.opmap["RETURN_VALUE"]


class Returns:
    """The frames whose return is waited for."""

    def __init__(self) -> None:
        self._waiting: dict[FrameType, OnReturn] = {}
        self._monitored: set[CodeType] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether there are any."""
        return bool(self._waiting)

    def wait_for(self, frame: FrameType, act: OnReturn) -> None:
        """Call `act` when `frame` returns, on its thread."""
        if frame in self._waiting:
            return
        self._waiting[frame] = act
        if sys.version_info >= (3, 12):
            self._monitor(frame.f_code)
        else:
            self._trace(frame)

    def forget(self, frame: FrameType) -> None:
        """Its end was seen otherwise."""
        self._waiting.pop(frame, None)

    def clear(self) -> None:
        """Wait for none of them."""
        self._waiting.clear()
        if self._monitored:
            monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
            for code in self._monitored:
                monitoring.set_local_events(_TOOL_ID, code, 0)
            self._monitored.clear()
            monitoring.free_tool_id(_TOOL_ID)

    def _trace(self, frame: FrameType) -> None:
        before = frame.f_trace

        def trace(traced: FrameType, event: str, value: Any) -> Any:
            if event == "return" and _has_returned(traced):
                self._returned(traced, value)
            if before is not None:
                before(traced, event, value)
            return trace

        frame.f_trace = trace

    def _monitor(self, code: CodeType) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        events = monitoring.events
        if not self._monitored:
            if monitoring.get_tool(_TOOL_ID) is not None:
                raise RuntimeError(f"sys.monitoring: tool id {_TOOL_ID} is in use")
            monitoring.use_tool_id(_TOOL_ID, "tensorpoint")
            monitoring.register_callback(
                _TOOL_ID,
                events.PY_RETURN,
                lambda code, offset, value: self._returned(sys._getframe(1), value),
            )
        self._monitored.add(code)
        monitoring.set_local_events(_TOOL_ID, code, events.PY_RETURN)

    def _returned(self, frame: FrameType, value: Any) -> None:
        act = self._waiting.pop(frame, None)
        if act is not None:
            act(frame, value)


def _has_returned(frame: FrameType) -> bool:
    """Whether a frame that ends does so by `return`, not by an exception that goes through it.

    The interpreter tells a trace function of a "return" in both cases.
    """
    return frame.f_code.co_code[frame.f_lasti] == _RETURN
