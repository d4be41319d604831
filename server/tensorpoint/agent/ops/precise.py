"""Records each operation as the program runs it: precision "op".

For what can't be run again: a loss computed outside of modules, an optimizer's step, a model that
draws from a generator of its own. It costs a Python call and a sum for each operation, so it is on
only where it was asked for, and of itself in three places, on the CPU (on CUDA each sum would wait
for the device): from a model's output to the backward of what is computed of it; all that is
outside of models, once a backward has come to what was computed of no model's output, and where
that is worth its time (`worth`); and an optimizer's step that may write a NaN.

It is a mode on torch's own stack, which is left in the order in which it is entered. So it is
entered only where the program has no mode on, and left only where it is the innermost one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from typing import Any
from weakref import WeakValueDictionary, ref

from .. import debugger
from ..modules import Call
from ..tensors import tensors_in
from .after_model import AfterModel, AfterModelBackward, ModelCall, Producer
from .dispatch import compiling_goes_on, leave
from .forwards import Forwards, Limits, sequence_number
from .recorder import Describe, Recorder
from .worth import Trial

#: The operands of a loss that are kept for what a stop says of them.
_KEPT = Limits(one=64 << 20, all=256 << 20)
#: Models' calls without a gradient between a model's and the backward of that.
_MAX_OTHERS = 8


class _Thread(threading.local):
    recorder: Recorder | None = None
    mode: Any = None
    #: Whether it is on for one step of an optimizer, or one loss, only.
    for_now = False
    #: Whether a root's call runs, and the number of the first node of that or the last one.
    is_in_root = False
    first_node = 0
    #: Calls that lead to no backward, as of a teacher or a metric, since one that may. While they
    #: are few its backward is waited for.
    others = _MAX_OTHERS
    #: What was computed of roots' outputs since the last backward.
    after: AfterModel | None = None
    #: Once a backward has come to what no root had made: whether that is recorded.
    without: Trial | None = None
    #: Whether that may be since we were armed in the middle of a step, and how often losses had
    #: been begun to be followed when a root was heard of last.
    is_guess = False
    rooted = -1
    #: Its backward, while that runs: whether its graph stays, and whether it makes another.
    backward: AfterModelBackward | None = None
    keeps_graph = makes_graph = False


class Precise:
    """The recorders of the program's threads. A listener of all sources."""

    def __init__(
        self,
        is_risky: Callable[[Any], bool],
        clips_bad_gradient: Callable[[], bool],
        describe: Describe,
        on_fault: Callable[[Any, Exception], None],
        after_write: Callable[[Any, Any], None] | None = None,
    ) -> None:
        self._describe = describe
        self._on_fault = partial(on_fault, self)
        self._recorder = partial(
            Recorder, describe=describe, after_write=after_write, on_fault=self._on_fault
        )
        #: Whether every operation is recorded.
        self.is_on = False
        #: Whether losses are, of themselves: nobody looks at them where no backward is heard of.
        self.follows_losses = True
        self._times_begun = 0
        #: Whether the step that this optimizer is about to make may write a NaN.
        self._is_risky = is_risky
        #: Whether a gradient that is about to be clipped is bad.
        self._clips_bad_gradient = clips_bad_gradient
        self._thread = _Thread()
        #: Those that are on, by thread.
        self._running: WeakValueDictionary[int, Recorder] = WeakValueDictionary()
        #: A hook on modules for as long as other threads have one on that is to go.
        self._leaving: Any = None

    def recorder(self) -> Recorder | None:
        """What was recorded on this thread."""
        thread = self._thread
        if thread.recorder is None and thread.after is not None:
            return thread.after.recorder
        return thread.recorder

    def switch(self, on: bool) -> None:
        """Record from now on, or no longer; on other threads from their next event on."""
        self.is_on = on
        self._follow()
        if not on:
            self._leave_elsewhere()

    def follow_losses(self, wanted: bool) -> None:
        """Record losses for the backward passes that are heard of, or no longer."""
        self._times_begun += wanted and not self.follows_losses
        self.follows_losses = wanted

    def after_fork(self) -> None:
        """Of the parent's threads only this one is here."""
        own = self._running.get(get_ident())
        self._running.clear()
        if own is not None:
            self._running[get_ident()] = own

    def producer(self, parameter: Any) -> Producer | None:
        """Who made the bad gradient that the backward which runs has brought, outside of models."""
        backward = self._thread.backward
        return None if backward is None else backward.producer(parameter)

    def on_root(self, call: Call) -> None:
        """A step may begin: what earlier ones made is over, unless they wait for their backward."""
        self._follow()
        thread = self._thread
        if not self.follows_losses:
            thread.after = None
        thread.is_in_root, thread.first_node = True, sequence_number()
        thread.rooted = self._times_begun
        has_graph = sys.modules["torch"].is_grad_enabled()
        if thread.backward is not None:
            thread.backward.pause()
        elif thread.after is not None and thread.after.is_old and has_graph:
            thread.after = None
        if thread.recorder is not None and not has_graph and thread.others >= _MAX_OTHERS:
            thread.recorder.forget()

    def on_root_exit(self, call: Call, output: Any) -> None:
        """What the program computes of a model's output can't be run again: record it."""
        thread = self._thread
        thread.is_in_root = False
        if debugger.evaluating() or not self.follows_losses:
            return
        leads = _leads_to_backward(output)
        thread.others = 0 if leads else thread.others + 1
        if leads and thread.is_guess:
            thread.without, thread.is_guess = None, False
        if thread.mode is not None:
            return
        if leads:
            if thread.after is None or thread.after.is_worn_out:
                thread.after = self._from(thread.first_node)
            thread.after.add(ModelCall(ref(call.module), thread.first_node, sequence_number()))
        elif thread.after is None or thread.others > _MAX_OTHERS:
            return
        if thread.backward is not None:
            thread.backward.record()
            return
        thread.for_now = self._enter(thread.after.recorder)

    def _from(self, node: int) -> AfterModel:
        forwards = Forwards(node, _KEPT)
        return AfterModel(self._recorder(forwards=forwards), forwards, node)

    def _go_on(self) -> None:
        """Between two passes or steps: record what may belong to another backward."""
        thread = self._thread
        if thread.is_in_root or not self.follows_losses:
            return  # (a root can be run again)
        if thread.after is None and thread.without is not None and thread.without.records:
            thread.after = self._from(sequence_number())
        if thread.after is not None and thread.mode is None:
            thread.for_now = self._enter(thread.after.recorder)

    def on_engine(self, retain_graph: bool, create_graph: bool) -> None:
        """How the backward pass that begins treats its graph."""
        self._thread.keeps_graph, self._thread.makes_graph = retain_graph, create_graph

    def on_backward(self, roots: Sequence[Any]) -> None:
        """A backward pass begins: look at what it computes outside of models.

        One that is itself differentiable is recorded whole: the next goes through its nodes.
        """
        thread = self._thread
        if thread.after is not None and thread.for_now and thread.makes_graph:
            thread.after.has_gradients = True
            return
        self._follow()
        if thread.mode is not None:
            return
        if thread.after is not None:
            thread.backward = AfterModelBackward(
                thread.after, roots, self._describe, self._on_fault
            )
            if thread.backward.has_earlier:
                thread.without = thread.without or Trial()
        elif not thread.is_in_root and compiling_goes_on():
            if thread.without is None and any(tensor.is_cpu for _, tensor in tensors_in(roots, "")):
                thread.without = Trial()
                thread.is_guess = thread.rooted != self._times_begun
                # Of this one nothing is recorded, but its nodes can be looked at as they run.
                thread.backward = AfterModelBackward(
                    self._from(0), roots, self._describe, self._on_fault
                )

    def on_inner_backward(self, roots: Sequence[Any]) -> None:
        """In the middle of it another begins, as of a reentrant checkpoint."""
        if self._thread.backward is not None:
            self._thread.backward.on_inner(roots)

    def on_backward_end(self, results: object) -> None:
        """What it went through is over, but for a graph that the program keeps."""
        self._end_backward()
        if self._thread.without is not None:
            self._thread.without.step()
        self._go_on()

    def on_backward_failed(self) -> None:
        """The same."""
        self._end_backward()

    def _end_backward(self) -> None:
        thread = self._thread
        backward, thread.backward = thread.backward, None
        if backward is not None:
            backward.remove()
        is_kept = thread.keeps_graph or thread.makes_graph
        if not is_kept:
            thread.others = _MAX_OTHERS
        if thread.after is None:
            return
        if is_kept:
            thread.after.was_kept()
        else:
            thread.after = None if backward is None else thread.after.left_by(backward)

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
        self._go_on()

    def on_clipping(self, parameters: Sequence[Any]) -> None:
        """Record the clipping of a gradient that is bad already."""
        self._follow()
        thread = self._thread
        if thread.mode is None and self._clips_bad_gradient():
            thread.for_now = self._enter(self._recorder(phase="update"))

    def on_clipped(self, parameters: Sequence[Any], total_norm: float) -> None:
        """It is over. Those who looked at it have heard of it before us."""
        if self._thread.for_now:
            self._leave()
        self._go_on()

    def _follow(self) -> None:
        thread = self._thread
        if thread.for_now:
            self._leave()  # a loss is over, or a step ended with an exception
        if not self.is_on and thread.mode is not None:
            self._leave()
        elif self.is_on and thread.recorder is not None:
            thread.recorder.is_active = True
        elif self.is_on:
            self._enter(self._recorder(forwards=Forwards()))

    def _enter(self, recorder: Recorder) -> bool:
        inside = sys.modules["torch"]._C
        # In a backward pass autograd sets the modes back to those at its beginning.
        if inside._len_torch_dispatch_stack() or inside._current_graph_task_id() != -1:
            return False
        if debugger.evaluating():  # the debugger's own thread, on which plans arrive
            return False
        recorder.is_active = True
        self._thread.recorder, self._thread.mode = recorder, recorder.mode()
        self._running[get_ident()] = recorder
        self._thread.mode.__enter__()
        return True

    def _leave(self) -> None:
        thread = self._thread
        assert thread.recorder is not None
        thread.recorder.is_active = thread.for_now = False
        if leave(thread.mode):
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
    return (
        sys.modules["torch"].is_grad_enabled()
        and any(tensor.requires_grad and tensor.is_cpu for _, tensor in tensors_in(output, ""))
        and compiling_goes_on()
    )
