"""Turns an event into a stop of the debugger at the user's line.

The stop frame is the caller of the module outside torch: for a transformers model the line in its
modeling file, not the training script. Frames that only forward the call of the same module (a
`__call__` override that ends in `super().__call__`) are passed over. The nearest frame of the
user's own code is named as well.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..wire import Stop
from . import debugger, explain
from .modules import Names, frame_of_call
from .rules import Rule
from .watches.base import Event

if TYPE_CHECKING:
    from torch.nn import Module

_AGENT_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_CALL_NAMES = frozenset({"__call__", "_call_impl", "_wrapped_call_impl", "inner"})
#: Events whose stop is a plain breakpoint; all others are shown like an exception, so that the
#: editor puts its box with the diagnosis at the line.
_REASONS = {"layer.entry": "function breakpoint"}

#: Library files below the program's first frame.
_THREAD_STARTERS = frozenset(
    {threading.__file__, os.path.join(os.path.dirname(os.__file__), "runpy.py")}
)

#: The live objects of the stop that each thread is in, for the "Tensor event" scope.
_current: dict[int, dict[str, Any]] = {}


def values() -> dict[str, Any]:
    """The live objects of the stop this thread is in; evaluated by the debugger's scope."""
    return _current.get(threading.get_ident(), {})


class Stopper:
    """Suspends threads for events."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._turn = threading.Lock()

    def after_fork(self) -> None:
        """A lock that another thread of the parent held would stay locked in the child."""
        self._turn = threading.Lock()

    def __call__(self, rules: Sequence[Rule], event: Event) -> bool:
        """Stop at `event` for `rules` until resumed; False if there is nobody to see it."""
        if not debugger.attached() or debugger.evaluating():
            return False
        frame = _stop_frame(event.entered)
        if frame is None:
            return False
        stop = self._describe(rules[0], event, frame)
        body = {
            "reason": _REASONS.get(event.name, "exception"),
            "description": stop.description,
            "text": stop.text,
            "hitBreakpointIds": [rule.id for rule in rules],
            "tensorpoint": asdict(stop),
        }
        ident = threading.get_ident()
        # pydevd announces the first of several threads that suspend at the same moment and
        # resumes all with it: the others wait here for their turn.
        with self._turn:
            if not debugger.attached():  # the client may have left meanwhile
                return False
            _current[ident] = {"module": event.module, **event.values}
            try:
                debugger.suspend(frame, body)
            finally:
                del _current[ident]
        return True

    def _describe(self, rule: Rule, event: Event, frame: FrameType) -> Stop:
        path = self._names.path(event.module, event.entered)
        step = self._names.step(event.module)
        module = explain.place(event.module, path)
        user = next((outer for outer in _outwards(frame) if debugger.in_project(outer)), None)
        file, function = debugger.client_path(frame), frame.f_code.co_name
        headline = f"{event.headline} {module}"
        seen = "called at" if event.entered is event.module else "seen at"
        sentences = [
            f"{headline}, {seen} {os.path.basename(file)}:{frame.f_lineno} in {function}.",
            *event.sentences,
        ]
        if step is not None:
            root = type(self._names.root_and_path(event.module)[0]).__name__
            sentences.append(f"Step {step} (forward calls of {root}, from 0).")
        if user is not None and user is not frame:
            sentences.append(f"Your code: {debugger.client_path(user)}:{user.f_lineno}.")
        return Stop(
            tensorpoint=rule.id,
            condition=rule.tensorpoint.text,
            event=event.name,
            module=path,
            module_type=type(event.module).__name__,
            op=None,
            file=file,
            line=frame.f_lineno,
            function=function,
            user_file=debugger.client_path(user) if user is not None else None,
            user_line=user.f_lineno if user is not None else None,
            step=step,
            optimizer_step=self._names.optimizer_step(),
            value=event.value,
            description=f"Paused on {headline}",
            text="\n".join(sentences),
            tensor=event.tensor,
        )


def _stop_frame(module: Module) -> FrameType | None:
    """The frame outside torch that called `module`, searched from the hook we run in."""
    here = sys._getframe()
    start = frame_of_call(module, here)
    outside = [frame for frame in _outwards(start or here) if not _is_internal(frame)]
    for frame in outside:
        if not _passes_on(frame, module):
            return frame
    return outside[-1] if outside else _frame_behind_autograd()


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_internal(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    torch_folder = os.path.dirname(sys.modules["torch"].__file__ or "") + os.sep
    inside = (torch_folder, _AGENT_FOLDER, debugger.folder(), "<frozen ", "<eval_with_key>")
    return name.startswith(inside) or name in _THREAD_STARTERS


def _passes_on(frame: FrameType, module: Module) -> bool:
    return frame.f_code.co_name in _CALL_NAMES and frame.f_locals.get("self") is module


def _frame_behind_autograd() -> FrameType | None:
    """The frame of a thread that waits in `backward()`, for a hook on one of autograd's threads.

    Those threads are started by C++ and have no Python frames of the program.
    """
    for ident, top in sys._current_frames().items():
        if ident == threading.get_ident():
            continue
        frames = list(_outwards(top))
        if any(frame.f_code.co_name == "_engine_run_backward" for frame in frames):
            debugger.enable_tracing()
            return next((frame for frame in frames if not _is_internal(frame)), None)
    return None
