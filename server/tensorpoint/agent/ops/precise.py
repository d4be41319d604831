"""Records each operation as the program runs it: precision "op".

For what can't be run again: a loss computed outside of modules, an optimizer's step, a model that
draws from a generator of its own. It costs a Python call and a sum for each operation, so it is on
only where it was asked for, and of itself in two places: from a model's output to the backward of
what is computed of it on the CPU (on CUDA each sum would wait for the device), and during an
optimizer's step that may write a NaN.

It is a mode on torch's own stack, which is left in the order in which it is entered. So it is
entered only where the program has no mode on, and left only where it is the innermost one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any
from weakref import WeakValueDictionary

from .. import debugger
from ..modules import Call
from ..tensors import tensors_in
from .dispatch import compiling_goes_on
from .recorder import Describe, Recorder


class _Thread(threading.local):
    recorder: Recorder | None = None
    mode: Any = None
    #: Whether it is on for one step of an optimizer, or one loss, only.
    for_now = False


class Precise:
    """The recorders of the program's threads. A listener of all sources."""

    def __init__(
        self,
        is_risky: Callable[[Any], bool],
        describe: Describe,
        on_fault: Callable[[Any, Exception], None],
        after_write: Callable[[Any, Any], None] | None = None,
    ) -> None:
        self._recorder = partial(
            Recorder,
            describe=describe,
            after_write=after_write,
            on_fault=lambda error: on_fault(self, error),
        )
        #: Whether every operation is recorded.
        self.is_on = False
        #: Whether the step that this optimizer is about to make may write a NaN.
        self._is_risky = is_risky
        self._thread = _Thread()
        #: Those that are on, by thread.
        self._running: WeakValueDictionary[int, Recorder] = WeakValueDictionary()
        #: A hook on modules for as long as other threads have one on that is to go.
        self._leaving: Any = None

    def recorder(self) -> Recorder | None:
        """What was recorded on this thread."""
        return self._thread.recorder

    def switch(self, on: bool) -> None:
        """Record from now on, or no longer; on other threads from their next event on."""
        self.is_on = on
        self._follow()
        if not on:
            self._leave_elsewhere()

    def after_fork(self) -> None:
        """Of the parent's threads only this one is here."""
        own = self._running.get(get_ident())
        self._running.clear()
        if own is not None:
            self._running[get_ident()] = own

    def on_root(self, call: Call) -> None:
        """A step may begin: what earlier ones made is over, unless they wait for their backward."""
        self._follow()
        recorder = self._thread.recorder
        if recorder is not None and not sys.modules["torch"].is_grad_enabled():
            recorder.forget()

    def on_root_exit(self, call: Call, output: Any) -> None:
        """What the program computes of a model's output can't be run again: record it."""
        thread = self._thread
        if thread.mode is None and _leads_to_backward(output) and not debugger.evaluating():
            thread.for_now = self._enter(self._recorder())

    def on_backward(self, roots: object) -> None:
        """A backward pass begins."""
        self._follow()

    def on_before_update(self, optimizer: Any) -> None:
        """Record a step that may write a NaN."""
        self._follow()
        thread = self._thread
        if thread.mode is None and self._is_risky(optimizer):
            thread.for_now = self._enter(self._recorder(phase="update"))

    def on_after_update(self, optimizer: Any) -> None:
        """The step is over. Those who looked at it have heard of it before us."""
        thread = self._thread
        if thread.for_now:
            self._leave()
        elif thread.recorder is not None:
            thread.recorder.forget()

    def _follow(self) -> None:
        thread = self._thread
        if thread.for_now:
            self._leave()  # a loss is over, or a step ended with an exception
        if not self.is_on and thread.mode is not None:
            self._leave()
        elif self.is_on and thread.recorder is not None:
            thread.recorder.is_active = True
        elif self.is_on:
            self._enter(self._recorder(follows_backward=True))

    def _enter(self, recorder: Recorder) -> bool:
        inside = sys.modules["torch"]._C
        # In a backward pass autograd sets the modes back to those at its beginning.
        if inside._len_torch_dispatch_stack() or inside._current_graph_task_id() != -1:
            return False
        if debugger.evaluating():  # the debugger's own thread, on which plans arrive
            return False
        self._thread.recorder, self._thread.mode = recorder, recorder.mode()
        self._running[get_ident()] = recorder
        self._thread.mode.__enter__()
        return True

    def _leave(self) -> None:
        thread = self._thread
        inside = sys.modules["torch"]._C
        assert thread.recorder is not None
        thread.recorder.is_active = thread.for_now = False
        depth = inside._len_torch_dispatch_stack()
        if depth and inside._get_dispatch_stack_at(depth - 1) is thread.mode:
            thread.mode.__exit__(None, None, None)
            thread.recorder = thread.mode = None
            self._running.pop(get_ident(), None)

    def _leave_elsewhere(self) -> None:
        """A mode is left by its own thread only: let it do so where it calls a module next.

        Plans come on a thread of the debugger's, and nobody may listen to events any more.
        """
        for recorder in list(self._running.values()):
            recorder.is_active = False
        if self._running and self._leaving is None:
            module = sys.modules["torch.nn.modules.module"]
            self._leaving = module.register_module_forward_pre_hook(self._leave_here)

    def _leave_here(self, *_: object) -> None:
        if self._thread.mode is not None and not self.is_on:
            self._leave()
        if not self._running and self._leaving is not None:
            self._leaving.remove()
            self._leaving = None


def _leads_to_backward(output: Any) -> bool:
    """Whether a loss may be computed of a model's output, on the CPU."""
    first: Any = next((tensor for _, tensor in tensors_in(output, "")), None)
    return (
        first is not None
        and first.requires_grad
        and first.is_cpu
        and sys.modules["torch"].is_grad_enabled()
        and compiling_goes_on()
    )
