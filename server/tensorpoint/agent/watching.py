"""`tensorpoint.watch`: tensorpoints for the time of a `with` statement or of a function's calls.

A watch is of the process, not of the thread that enters it: torch also runs modules on threads that
enter nothing (`DataParallel`, autograd's own). One that raises does so on the thread of the hit.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any, Literal, TypeVar

from .hit import Hit
from .local import LocalRule, On, tensorpoint, warn_unmatched
from .requests import running

F = TypeVar("F", bound=Callable[..., Any])


class Watch(ContextDecorator):
    """May be entered again, also while it is entered: each time starts without memory."""

    def __init__(
        self, tensorpoints: Sequence[tuple[Literal["condition", "layer"], str, str]], on: On
    ) -> None:
        self._tensorpoints = tuple(tensorpoints)
        self._on: On = on
        #: In place of warnings: is told at the end, for each condition, why it has matched no
        #: module; "" if it has, None if nothing was called.
        self.on_outcomes: Callable[[list[str | None]], None] | None = None
        #: Which of them an exit takes out makes no difference.
        self._entered: list[tuple[LocalRule, ...]] = []

    def __enter__(self) -> Watch:
        warns = self.on_outcomes is None
        rules = tuple(
            LocalRule(tensorpoint(*item), self._on, warns=warns) for item in self._tensorpoints
        )
        running().add(rules)
        self._entered.append(rules)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._entered:
            raise RuntimeError("the watch was left without being entered: write `with watch:`")
        rules = self._entered.pop()
        outcomes = running().outcomes(rules)
        running().take_out(rules)
        if self.on_outcomes is not None:
            self.on_outcomes(outcomes)
        elif error is None:
            for rule, why in zip(rules, outcomes, strict=True):
                if why and rule.warns:
                    warn_unmatched(why)
        if isinstance(error, Hit):
            _end_at_the_line(error)

    def __call__(self, func: F) -> F:
        """Watch during each call of `func`."""
        if (
            inspect.iscoroutinefunction(func)
            or inspect.isgeneratorfunction(func)
            or inspect.isasyncgenfunction(func)
        ):
            name = getattr(func, "__qualname__", func)
            raise TypeError(
                f"{name} runs after its call has returned: write `with tensorpoint.watch(...)` "
                "in its body"
            )
        return super().__call__(func)


def _end_at_the_line(hit: Hit) -> None:
    """Cut torch's frames and ours off the traceback: it, and a post-mortem debugger, end there."""
    trace, last = hit.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code is hit.code:
            last = trace
        trace = trace.tb_next
    if last is not None:
        last.tb_next = None
