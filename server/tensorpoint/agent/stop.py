"""Turns an event into a stop of the debugger at the user's line.

The stop frame is the caller of the module outside torch: for a transformers model the line in its
modeling file, not the training script. Frames that only forward the call of the same module (a
`__call__` override that ends in `super().__call__`) are passed over. The nearest frame of the
user's own code is named as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import FrameType
from typing import Any

from ..wire import OperationReport, Stop
from . import debugger, debugger_files, explain
from .frames import calling_frame, outwards, short_file
from .local import LocalRule, deliver
from .modules import Names
from .ops.locate import Located
from .ops.stack import replayed_frames
from .ops.suspect import Suspect
from .rules import Rule
from .watches.base import Event

#: Events whose stop is a plain breakpoint; all others are shown like an exception, so that the
#: editor puts its box with the diagnosis at the line.
_REASONS: dict[str, str] = dict.fromkeys(
    ("layer.entry", "layer.exit", "layer.backward"), "function breakpoint"
)

#: The live objects of the stop that each thread is in, for the "Tensor event" scope.
_current: dict[int, dict[str, Any]] = {}


def values() -> dict[str, Any]:
    """The live objects of the stop this thread is in; evaluated by the debugger's scope."""
    return _current.get(threading.get_ident(), {})


class Stopper:
    """Suspends threads for events."""

    def __init__(
        self, names: Names, locate: Callable[[Suspect | None], Located | None] = lambda _: None
    ) -> None:
        self._names = names
        self._locate = locate
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
        located = self._locate(event.suspect)
        stopped = bool(suspending) and self._suspend_within(suspending, event, frame, located)
        if not acting:  # from here on a step-in would announce each of our frames as skipped
            return stopped
        return (
            deliver(acting, lambda rule: self._describe(rule, event, frame, located), frame)
            or stopped
        )

    def _suspend_within(
        self, rules: Sequence[Rule], event: Event, frame: FrameType, located: Located | None
    ) -> bool:
        """Suspend at the operation's line if it can be run again up to there, else at `frame`."""
        stopped: list[bool] = []
        if located is not None and located.live is not None:
            located.live(
                lambda inner: stopped.append(
                    self._suspend(rules, event, inner, located, replayed=True)
                )
            )
        return stopped[0] if stopped else self._suspend(rules, event, frame, located)

    def _suspend(
        self,
        rules: Sequence[Rule],
        event: Event,
        frame: FrameType,
        located: Located | None,
        *,
        replayed: bool = False,
    ) -> bool:
        stop = self._describe(rules[0], event, frame, located, replayed=replayed)
        body = {
            "reason": _REASONS.get(event.name, "exception"),
            "description": stop.description,
            "text": stop.text,
            "hitBreakpointIds": [rule.id for rule in rules if not isinstance(rule, LocalRule)],
            "tensorpoint": asdict(stop),
        }
        values = {
            "module": event.module,
            **event.values,
            **({} if located is None else located.values),
        }
        return self.show(frame, body, values)

    def show(self, frame: FrameType, body: dict[str, Any], values: dict[str, Any]) -> bool:
        """Suspend this thread showing `frame`; False if nobody is there to see it.

        `body` goes into the `stopped` event, `values` are the live objects of its scope.
        """
        ident = threading.get_ident()
        # pydevd announces the first of several threads that suspend at the same moment and
        # resumes all with it: the others wait here for their turn.
        with self._turn:
            if not debugger.attached():  # the client may have left meanwhile
                return False
            _current[ident] = values
            try:
                debugger.suspend(frame, body)
            finally:
                del _current[ident]
        return True

    def _describe(
        self,
        rule: Rule,
        event: Event,
        frame: FrameType,
        located: Located | None,
        *,
        replayed: bool = False,
    ) -> Stop:
        path, step, headline = "", self._names.newest_step(), event.headline
        if event.module is not None:
            within = event.module if event.entered is None else event.entered
            path = self._names.path(event.module, within)
            step = self._names.step(event.module)
            headline += f" {explain.place(event.module, path)}"
        module, ran_in = event.module, ()
        if located is not None and located.module is not None:
            module = located.module
            path = self._names.path(module, module)
            ran_in = (explain.unhooked(module, path),)
        user = next((outer for outer in outwards(frame) if debugger_files.in_project(outer)), None)
        file, function = debugger_files.client_path(frame), frame.f_code.co_name
        called = event.entered is not None and event.entered is event.module
        seen = "at" if replayed else "called at" if called else "seen at"
        report = None if located is None else located.report
        if report is not None:
            headline += f", made by {explain.short_name(report.name)}"
        sentences = [
            f"{headline}, {seen} {short_file(file)}:{frame.f_lineno} in {function}.",
            *_place_of(report, frame),
            *ran_in,
            *(() if located is None else located.sentences),
            *event.sentences,
            *((explain.REPLAYED,) if replayed else ()),
        ]
        root = self._names.root_of(event.module)
        if step is not None and root is not None:
            sentences.append(f"Step {step} (forward calls of {type(root).__name__}, from 0).")
        if user is not None and user is not frame:
            sentences.append(f"Your code: {debugger_files.client_path(user)}:{user.f_lineno}.")
        return Stop(
            tensorpoint=rule.id,
            condition=rule.tensorpoint.text,
            event=event.name,
            module=path,
            module_type="" if module is None else type(module).__name__,
            file=file,
            line=frame.f_lineno,
            function=function,
            user_file=debugger_files.client_path(user) if user is not None else None,
            user_line=user.f_lineno if user is not None else None,
            step=step,
            optimizer_step=self._names.optimizer_step(),
            value=event.value,
            description=f"Paused on {headline}",
            text="\n".join(sentences),
            tensor=event.tensor,
            operation=report,
            replayed_frames=replayed_frames(frame) if replayed else (),
        )


def _place_of(report: OperationReport | None, frame: FrameType) -> tuple[str, ...]:
    """Where the operation is, unless it is the line of the stop, which is named anyway."""
    here = (debugger_files.client_path(frame), frame.f_lineno)
    if report is None or (report.node is None and (report.file, report.line) == here):
        return ()
    return (explain.operation(report),)
