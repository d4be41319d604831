"""Optimizer steps: before and after each, for whoever watches them; and how many there were."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from . import debugger
from .hit import Hit
from .modules import Names
from .watches.base import hearing

_EVENTS = ("on_before_update", "on_after_update")


class Updates:
    """Torch's global optimizer hooks, or none of them while nothing is armed.

    An optimizer that GradScaler makes skip its step runs neither. One that is no subclass of
    `torch.optim.Optimizer` isn't seen.
    """

    def __init__(self, names: Names, on_fault: Callable[[Any, Exception], None]) -> None:
        self._names = names
        self._on_fault = on_fault
        self._handles: list[Any] = []
        self._listeners: dict[str, tuple[Any, ...]] = dict.fromkeys(_EVENTS, ())

    def listen(self, listeners: Iterable[Any]) -> None:
        """Tell exactly these from now on."""
        self._listeners = {event: hearing(listeners, event) for event in _EVENTS}

    def install(self) -> None:
        """Hear of optimizer steps from now on. Does nothing if it does already."""
        if self._handles:
            return
        # A compiled step is traced with its hooks: it leaves these to Python, as torch has it for
        # parts of its own steps. (Its public name, torch.compiler.disable, imports the compiler.)
        compiling = sys.modules.get("torch._compile")
        unseen_by_compiler: Any = getattr(compiling, "_disable_dynamo", lambda hook: hook)

        @unseen_by_compiler
        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            self._before(optimizer)

        @unseen_by_compiler
        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            self._after(optimizer)

        optimizer = sys.modules["torch.optim.optimizer"]
        self._handles = [
            optimizer.register_optimizer_step_pre_hook(before),
            optimizer.register_optimizer_step_post_hook(after),
        ]

    def remove(self) -> None:
        """Take the hooks out again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before(self, optimizer: Any) -> None:
        if not debugger.evaluating():
            self._tell("on_before_update", optimizer)

    def _after(self, optimizer: Any) -> None:
        try:
            self._names.count_optimizer_step(optimizer)
        except Exception as error:
            self._on_fault(self, error)
        if not debugger.evaluating():
            self._tell("on_after_update", optimizer)

    def _tell(self, event: str, optimizer: Any) -> None:
        for listener in self._listeners[event]:
            try:
                getattr(listener, event)(optimizer)
            except Hit:
                raise
            except Exception as error:
                self._on_fault(listener, error)
