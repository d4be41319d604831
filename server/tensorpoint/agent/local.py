"""What the program itself sets: rules that raise, warn or call a function instead of suspending.

They are armed beside the client's plan and fire at the same time. Who looks at a debugger sees the
stop first; then the program gets its share, an exception last, so that no other is left out.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import warnings
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Literal

from ..wire import Stop, Tensorpoint
from ..wire.plan import LayerPhase
from .frames import calling_frame
from .hit import Hit, TensorpointWarning
from .rules import Rule

#: What a watch of the program's does at a hit.
On = Literal["stop", "raise", "warn"] | Callable[[Stop], object]

#: Far above those of an adapter, which count up from a million.
_ids = itertools.count(1_000_000_000)
#: Whether this thread is delivering a stop: what runs meanwhile is not looked at.
_thread = threading.local()


def tensorpoint(
    kind: Literal["condition", "layer"],
    condition: str,
    module: str = "",
    phase: LayerPhase = "forward",
) -> Tensorpoint:
    """A tensorpoint of the program's, with an id of its own."""
    return Tensorpoint(next(_ids), kind, condition, module, phase=phase)


class LocalRule(Rule):
    """A tensorpoint of a `watch`."""

    def __init__(self, tensorpoint: Tensorpoint, on: On, *, warns: bool = True) -> None:
        super().__init__(tensorpoint)
        #: Whether it warns of a glob that matches nothing, unless that was done.
        self.warns = warns
        self.suspends = on == "stop"
        self.raises = on == "raise"
        self._on = on
        self._told = False

    def warn_unmatched(self, text: str) -> bool:
        """Say in a hook that nothing has matched; False if that has to wait for the watch's end.

        A warning that is an error has to: an exception of a hook's that is no hit is a fault.
        """
        if not self.warns:
            return False
        try:
            warn_unmatched(text)
        except TensorpointWarning:
            return False
        self.warns = False
        return True

    def act(self, stop: Stop, frame: FrameType) -> None:
        """Do what the watch is for; `frame` is where the stop is."""
        if callable(self._on):
            self._on(stop)
        elif self._on == "raise":
            raise Hit(stop)
        elif self._on == "warn":
            _warn(stop.text, frame)
        elif not self._told:
            self._told = True
            _warn(
                f"no debugger is attached, so nothing stops at {self.tensorpoint.text}; attach "
                'one, or watch with on="raise" or on="warn"',
                frame,
            )


def deliver(rules: Sequence[LocalRule], describe: Callable[[Rule], Stop], frame: FrameType) -> bool:
    """Let each rule act on its stop. True if that was the end of it, for the memory of the rules.

    Raises `Hit`, which is the only exception that gets out of our hooks: what a function of the
    user's raises is its cause. The rules that it kept from acting don't count as true then, so that
    a program which goes on after it hears of the next one.
    """
    if not rules or getattr(_thread, "delivering", False):
        return False
    waiting = sorted(rules, key=lambda rule: rule.raises)
    _thread.delivering = True
    try:
        while waiting:
            stop = describe(waiting[0])
            try:
                waiting[0].act(stop, frame)
            except Exception as error:
                hit = error if isinstance(error, Hit) else Hit(stop)
                hit.code = frame.f_code
                raise hit from (None if hit is error else error)
            waiting.pop(0)
    finally:
        _thread.delivering = False
        for rule in waiting:
            rule.true_at.clear()
    return any(not rule.suspends for rule in rules)


def warn_unmatched(text: str) -> None:
    """Warn at the nearest line of the program, once for each line and text."""
    frame = calling_frame(None)
    while frame is not None and frame.f_code.co_filename == contextlib.__file__:
        frame = frame.f_back
    if frame is not None:
        names = frame.f_globals
        warnings.warn_explicit(
            text,
            TensorpointWarning,
            frame.f_code.co_filename,
            frame.f_lineno,
            names.get("__name__"),
            names.setdefault("__warningregistry__", {}),
        )


def _warn(text: str, frame: FrameType) -> None:
    """A warning at the line of `frame`, as if it came from there.

    Without the module's registry of what it has warned of: rules know what is news, and the same
    words in the next watch, or when a cell of a notebook is run again, are.
    """
    warnings.warn_explicit(
        text,
        TensorpointWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__"),
    )
