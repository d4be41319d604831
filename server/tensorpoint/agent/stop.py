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
from .local import LocalRule, deliver
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
        attached = debugger.attached()
        suspending = [rule for rule in rules if rule.suspends] if attached else []
        acting = [
            rule
            for rule in rules
            if isinstance(rule, LocalRule) and not (attached and rule.suspends)
        ]
        if not (suspending or acting) or debugger.evaluating():
            return False
        frame = calling_frame(event.entered)
        if frame is None:
            return False
        stopped = bool(suspending) and self._suspend(suspending, event, frame)
        if not acting:  # from here on a step-in would announce each of our frames as skipped
            return stopped
        return deliver(acting, lambda rule: self._describe(rule, event, frame), frame) or stopped

    def _suspend(self, rules: Sequence[Rule], event: Event, frame: FrameType) -> bool:
        stop = self._describe(rules[0], event, frame)
        body = {
            "reason": _REASONS.get(event.name, "exception"),
            "description": stop.description,
            "text": stop.text,
            "hitBreakpointIds": [rule.id for rule in rules if not isinstance(rule, LocalRule)],
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
        path, step, headline = "", self._names.newest_step(), event.headline
        if event.module is not None:
            within = event.module if event.entered is None else event.entered
            path = self._names.path(event.module, within)
            step = self._names.step(event.module)
            headline += f" {explain.place(event.module, path)}"
        user = next((outer for outer in _outwards(frame) if debugger.in_project(outer)), None)
        file, function = debugger.client_path(frame), frame.f_code.co_name
        called = event.entered is not None and event.entered is event.module
        seen = "called at" if called else "seen at"
        sentences = [
            f"{headline}, {seen} {os.path.basename(file)}:{frame.f_lineno} in {function}.",
            *event.sentences,
        ]
        root = self._names.root_of(event.module)
        if step is not None and root is not None:
            sentences.append(f"Step {step} (forward calls of {type(root).__name__}, from 0).")
        if user is not None and user is not frame:
            sentences.append(f"Your code: {debugger.client_path(user)}:{user.f_lineno}.")
        return Stop(
            tensorpoint=rule.id,
            condition=rule.tensorpoint.text,
            event=event.name,
            module=path,
            module_type="" if event.module is None else type(event.module).__name__,
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


def calling_frame(module: Module | None) -> FrameType | None:
    """The frame outside torch that called `module`, searched from the hook we run in.

    Without a module: the nearest one, such as that of the line with `backward()`.
    """
    here = _outside_of_taps(
        sys._getframe(1)
    )  # not this one: a frame that holds itself would keep all it sees
    start = None if module is None else frame_of_call(module, here)
    outside = [frame for frame in _outwards(start or here) if not _is_internal(frame)]
    for frame in outside:
        if module is None or not _passes_on(frame, module):
            return frame
    return outside[-1] if outside else _frame_behind_autograd()


def _outside_of_taps(frame: FrameType) -> FrameType:
    """The call of the tapped function, where an adapter told of it; else the same frame.

    Between our own frames and that call there are only the adapter's.
    """
    told = False
    for outer in _outwards(frame):
        code = outer.f_code
        ours = code.co_filename.startswith(_AGENT_FOLDER)
        told = told or (ours and code.co_filename.endswith("taps.py"))
        if not ours and not told:
            return frame
        if ours and code.co_name == "replacement":
            return outer
    return frame


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
