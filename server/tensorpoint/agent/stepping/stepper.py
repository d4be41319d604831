"""Steps through layers: hooks while it steps, and the stops at their entries and exits.

Each Python thread has a goal of its own (`goal`), from the request for a step to the next stop,
whatever that is for. The hooks are those of `hooks`; while nobody steps they are gone. Exits of
modules that were entered before are heard of by `returns`. A backward pass goes on one of
autograd's threads at times; it follows the goal of the thread that waits for it.

All but the switching happens on the program's threads: requests are evaluated on the suspended one.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any

from .. import debugger, suspension
from ..frames import calling_frame
from ..hooks import Hooks
from ..modules import Call, Names, frame_of_call, keywords_of, running_calls
from ..ops.recorder import NotReplayable
from ..ops.state import Entries
from ..quiet import is_quiet
from ..stop import values
from .back import Left, no_way_back, run_again
from .backward import Backward, Visit
from .goal import Goal, How
from .order import Order
from .returns import Returns
from .scopes import inputs_of
from .stack import Layer, is_in_layer, read
from .trace import Trace
from .view import View, headline, know_stop, program_frame, text, view_of_frames

if TYPE_CHECKING:
    from torch.nn import Module

#: Suspends a thread: the frame to show, what goes into `stopped`, live objects.
Show = Callable[[FrameType, dict[str, Any], dict[str, Any]], bool]


class StepError(Exception):
    """A step can't be done; the text says why."""


class Stepper:
    """The steps of this process's threads. A listener of hooks, gradients and updates."""

    def __init__(
        self,
        names: Names,
        hooks: Hooks,
        entries: Entries,
        show: Show,
        switch: Callable[[], None],
        on_fault: Callable[[Any, Exception], None],
    ) -> None:
        self._names = names
        self._hooks = hooks
        self._entries = entries
        self._show = show
        self._switch = switch
        self._on_fault = on_fault
        self.order = Order()
        #: By thread ident: the entry to go back to.
        self._back_to: dict[int, int] = {}
        #: By thread ident: of the program's own thread, also where autograd's goes for it.
        self._goals: dict[int, Goal] = {}
        self._views: dict[int, View] = {}
        #: By thread ident: where a breakpoint has stopped: layer and phase, which we hear of next.
        self._told: dict[int, tuple[weakref.ref[Module], str]] = {}
        #: By thread ident: the suspended threads, as the client knows them.
        self._suspended: dict[int, int] = {}
        #: Whether a step was asked for at this stop: else the program goes on, with all threads.
        self._is_asked = False
        self._returns = Returns()
        self._backward = Backward(self._on_backward_layer)
        #: The root that was last shown.
        self._root: Callable[[], Module | None] = lambda: None
        #: Lists what comes by, where that is asked for.
        self._trace: Trace | None = None
        #: Whether the hooks are wanted.
        self.is_on = False
        debugger.on_suspension(self._before_suspension, self._after_suspension)

    # Asked for, on the suspended thread -----------------------------------------------------------

    def view(self) -> View:
        """What is shown of this thread's layers."""
        ident = get_ident()
        view = self._views.get(ident)
        if view is None:
            view = self._views[ident] = view_of_frames(program_frame(), self._names)
            know_stop(view, values())
        return view

    def step(self, how: How, target: int | None = None) -> None:
        """Let this thread, once it goes on, run to where the step ends."""
        view = self.view()
        aimed: Module | None = None
        if target is not None:
            if not 0 <= target < len(view.targets):
                raise StepError("this child layer is not known any more: ask for the targets again")
            aimed = view.targets[target]
        owner = self._backward.owner()
        if self.is_on and view.layers and not view.by_step:
            self._told[get_ident()] = weakref.ref(view.top.module), view.top.phase
        self._start()
        self._is_asked = True
        self._goals[owner] = Goal(how, view.level, None if aimed is None else weakref.ref(aimed))
        self._wait_for_exits()

    def back(self, *, first: bool) -> None:
        """Let this thread, once it goes on, run its forward again up to an earlier layer."""
        view = self.view()
        if view.back is not None:
            raise StepError(view.back)
        assert view.number is not None
        number = self.order.position(view.number, at_entry=view.top.phase == "entry")
        target = 0 if first else self.order.before(number, view.level)
        if target is None:
            raise StepError("there is no layer before this one")
        self._is_asked = True
        self._back_to[get_ident()] = target

    def targets(self, number: int) -> list[str]:
        """Paths of the child layers of a layer, which a step in may be aimed at."""
        view = self.view()
        layer = view.layers[number]
        if not hasattr(layer.module, "named_children"):
            return []
        view.targets = [child for _, child in layer.module.named_children()]
        return [
            f"{self._names.path(child, layer.module)} ({type(child).__name__})"
            for child in view.targets
        ]

    def suspended(self) -> tuple[list[int], bool]:
        """The suspended threads, as the client knows them; whether one in a model isn't yet.

        On any thread. One that is in a call of torch's stops at its next line only.
        """
        suspended = dict(self._suspended)
        others = (frame for ident, frame in sys._current_frames().items() if ident not in suspended)
        return list(suspended.values()), any(is_in_layer(frame) for frame in others)

    def trace(self, tell: Callable[[list[dict[str, Any]], bool], None]) -> None:
        """List the layer events of the next step: `tell` gets parts of them, and at last True."""

        def hand_over(events: list[dict[str, Any]], is_last: bool) -> None:
            if is_last:
                self._trace = None
                self.stop()
            tell(events, is_last)

        self._trace = Trace(self._names, hand_over)
        self._start()

    # Switching ------------------------------------------------------------------------------------

    def _start(self) -> None:
        if not self.is_on:
            self.is_on = True
            self._switch()

    def stop(self) -> None:
        """Nobody steps any more: leave nothing behind."""
        self._goals.clear()
        self._told.clear()
        self._returns.clear()
        self._backward.clear()
        if self.is_on:
            self.is_on = False
            self._switch()

    def after_fork(self) -> None:
        """The child's threads step no more."""
        self._goals.clear()
        self._told.clear()
        self._views.clear()
        self._suspended.clear()
        self._returns = Returns()
        self._backward = Backward(self._on_backward_layer)
        self.is_on = False

    def _before_suspension(self, frame: FrameType) -> None:
        """Whatever stops a thread is the end of its step."""
        if not self._suspended:
            self._is_asked = False
        self._suspended[get_ident()] = suspension.dap_thread_id()
        self._goals.pop(self._backward.owner(), None)

    def _after_suspension(self) -> None:
        self._suspended.pop(get_ident(), None)
        self._views.pop(get_ident(), None)
        if not self._is_asked:  # those that are pending on threads that weren't suspended
            self._goals.clear()
        if self.is_on and not (self._goals or self._views or self._back_to or self._trace):
            try:
                self.stop()
            except Exception as error:
                self._on_fault(self, error)

    def _wait_for_exits(self) -> None:
        """Hear of the exits of the calls that run and that the hooks don't know."""
        known = self._hooks.running()
        for call in running_calls(program_frame()):
            if not any(own.module is call.module and own.seen_entry for own in known):
                frame = call.frame
                if frame is not None:
                    self._returns.wait_for(frame, self._on_return)

    # Forward --------------------------------------------------------------------------------------

    def on_enter(self, call: Call, outer: list[Call]) -> None:
        """A module is about to run its forward."""
        if not self.is_on:
            return
        self._backward.entered(call, outer)
        depth = self._backward.depth + len(outer) + 1
        if self._trace is not None:
            inputs = inputs_of(call.module, call.args, keywords_of(call))
            named = dict(zip(inputs.names, inputs, strict=True))
            self._trace.note(call.module, "entry", depth, named)
        if not self._is_told(call.module, "entry") and self._ends_at(
            call.module, depth, entering=True
        ):
            self._stop_at(call.module, "entry", number=call.number)

    def on_leave(self, call: Call, outer: list[Call], output: Any) -> None:
        """It has returned."""
        if not self.is_on:
            return
        self._returned(call, outer, output)
        self._returns_seen(call)

    def _on_return(self, frame: FrameType, output: Any) -> None:
        """The same for a module that was entered before we listened."""
        try:
            calls = running_calls(frame)
            if calls and self.is_on:
                self._returned(calls[-1], calls[:-1], output)
        except Exception as error:
            self._on_fault(self, error)

    def _returned(self, call: Call, outer: list[Call], output: Any) -> None:
        self._backward.left(call, outer, output)
        depth = self._backward.depth + len(outer) + 1
        if self._trace is not None:
            self._trace.note(call.module, "exit", depth, None, {"output": output})
        if not self._is_told(call.module, "exit") and self._ends_at(
            call.module, depth, entering=False
        ):
            self._stop_at(call.module, "exit", output, number=call.number)

    def _returns_seen(self, call: Call) -> None:
        if self._returns.is_waiting:
            frame = frame_of_call(call.module, sys._getframe())
            if frame is not None:
                self._returns.forget(frame)

    # Backward -------------------------------------------------------------------------------------

    def on_backward(self, roots: Sequence[Any]) -> None:
        """A backward pass begins."""
        self._backward.begin()

    def on_backward_end(self, results: Sequence[Any]) -> None:
        """It is over: a root whose inputs need no gradient is left now."""
        root = self._backward.unfinished()
        if root is not None:
            self._on_backward_layer(root, False)
        self._backward.end()

    def on_backward_failed(self) -> None:
        """It ended with an exception."""
        self._backward.end()

    def on_parameter_gradient(
        self, owner: Module | None, name: str, parameter: Any, norm: float | None
    ) -> None:
        """Of a layer whose forward was not stepped through, only this is heard of."""
        if not self.is_on or owner is None or self._backward.is_met(owner):
            return
        seen = self._backward.seen
        if id(owner) in seen:
            return
        chain = self._names.ancestors(owner)
        for depth, module in enumerate(chain, 1):
            if id(module) in seen or self._backward.is_met(module):
                continue
            seen.add(id(module))
            if self._ends_at(module, depth, entering=True):
                layers = [
                    Layer(around, self._names.path(around, chain[0]), "backward")
                    for around in chain[:depth]
                ]
                layers[-1].notes = (f"by the gradient of {name}",)
                self._stop_in_backward(layers, "backward entry")

    def _on_backward_layer(self, visit: Visit, entering: bool) -> None:
        module = visit.module()
        if not self.is_on or module is None or is_quiet() or debugger.evaluating():
            return
        try:
            if self._trace is not None:
                given = {name: tuple(item.values()) for name, item in visit.gradients.items()}
                brought = {"grad_output": given.get("grad_output", ())}
                left = None if entering else {"grad_input": given.get("grad_input", ())}
                phase = "backward entry" if entering else "backward exit"
                self._trace.note(module, phase, visit.depth, brought if entering else None, left)
            if self._ends_at(module, visit.depth, entering=entering):
                layers: list[Layer] = []
                around: Visit | None = visit
                while around is not None:
                    inside = around.module()
                    if inside is not None:
                        layer = Layer(inside, "", "backward")
                        layer.gradients = around.named_gradients()
                        layers.append(layer)
                    around = around.around
                layers.reverse()
                for layer in layers:
                    layer.path = self._names.path(layer.module, layers[0].module)
                self._stop_in_backward(layers, "backward entry" if entering else "backward exit")
        except Exception as error:
            self._on_fault(self, error)

    # Optimizers -----------------------------------------------------------------------------------

    def on_before_update(self, optimizer: Any) -> None:
        """An optimizer is about to step: a layer of its own."""
        if self._trace is not None:
            self._trace.note(optimizer, "update", 1)
        if self.is_on and self._ends_at(optimizer, 1, entering=True):
            self._stop_in_backward([Layer(optimizer, "optimizer")], "update")

    def on_after_update(self, optimizer: Any) -> None:
        """It has stepped."""
        if self._trace is not None:
            self._trace.note(optimizer, "updated", 1)
        if self.is_on and self._ends_at(optimizer, 1, entering=False):
            self._stop_in_backward([Layer(optimizer, "optimizer")], "updated")

    # Stopping -------------------------------------------------------------------------------------

    def _is_told(self, module: Module, phase: str) -> bool:
        """Whether a breakpoint has stopped this thread right here: it is no end of a step again."""
        told = self._told.pop(get_ident(), None)
        return told is not None and told[0]() is module and told[1] == phase

    def _ends_at(self, module: Any, depth: int, *, entering: bool) -> bool:
        goal = self._goals.get(get_ident()) or self._goals.get(self._backward.owner())
        return goal is not None and goal.is_reached(module, depth, entering=entering)

    def _stop_at(
        self,
        module: Module,
        phase: str,
        output: Any = None,
        *,
        number: int | None,
        replayed: bool = False,
    ) -> None:
        """Stop in a forward, at the entry or exit of `module`, whose call is the innermost one."""
        # A thread whose target is the module itself has no line of the program.
        frame = calling_frame(module) or frame_of_call(module, sys._getframe())
        layers = read(sys._getframe(), self._names)
        if frame is None or not layers:
            return
        while layers[-1].module is not module and len(layers) > 1:
            layers.pop()  # of hooks of the program's that call modules
        top = layers[-1]
        top.phase, top.frame = phase, None
        if phase == "exit":
            top.output, top.has_output = output, True
        self._stop(layers, frame, self._backward.depth, number, replayed=replayed)

    def _stop_in_backward(self, layers: list[Layer], phase: str) -> None:
        frame = calling_frame(None)
        if frame is not None:
            layers[-1].phase = phase
            self._stop(layers, frame, 0)

    def _stop(
        self,
        layers: list[Layer],
        frame: FrameType,
        depth_around: int,
        number: int | None = None,
        *,
        replayed: bool = False,
    ) -> None:
        is_update = "update" in layers[-1].phase
        # An optimizer's step is shown among the layers of the model that was stepped through.
        root = self._root() if is_update else self._names.root_and_path(layers[0].module)[0]
        if root is not None:
            self._root = weakref.ref(root)
        view = View(
            list(reversed(layers)),
            depth_around=depth_around,
            root=layers[0].module if root is None else root,
            step=None if root is None else self._names.step(root),
            number=number,
            replayed=replayed,
            by_step=True,
        )
        outermost = view.layers[-1].module
        view.back = no_way_back(view, self._entries.of(outermost), self.order.depths_of(outermost))
        self._suspend(view, frame)
        if replayed:
            self._leave_or_go_on()
            return
        while (target := self._back_to.pop(get_ident(), None)) is not None:
            why = self._run_again(view, target)
            if why is None:
                return
            self._suspend(view, frame, why)

    def _suspend(self, view: View, frame: FrameType, why: str = "") -> None:
        ident = get_ident()
        self._views[ident] = view
        body = {
            "reason": "step",
            "description": headline(view.top),
            "text": "\n".join(filter(None, (why, text(view.top)))),
            "layerStack": view.stack(frame).as_message(),
        }
        try:
            self._show(frame, body, {})
        finally:
            self._views.pop(ident, None)

    # Back -----------------------------------------------------------------------------------------

    def _run_again(self, live: View, target: int) -> str | None:
        """Run the forward again up to the entry `target`, and on from there as the user steps.

        Returns why the live stop is to be shown again ("" for no reason but the step's), or None
        where the live run goes on.
        """
        ident = get_ident()
        entry = self._entries.of(live.layers[-1].module)
        end = (live.number, live.top.phase == "entry")

        def arrive(module: Any, number: int, depth: int, entering: bool, output: Any) -> None:
            if (number, entering) == end:
                raise Left
            aimed = entering and number == target
            if aimed or self._ends_at(module, depth, entering=entering):
                phase = "entry" if entering else "exit"
                self._stop_at(module, phase, output, number=number, replayed=True)

        if entry is None:
            return "The forward can't be run again: how its call began is not known any more."
        try:
            left = run_again(entry, self._hooks.aside, arrive)
        except NotReplayable as reason:
            self._goals.pop(ident, None)
            return f"The forward can't be run again up to there: {reason}."
        if left is not None and left.again is not None:
            self._back_to[ident] = left.again
            return self._run_again(live, self._back_to.pop(ident))
        goal = self._goals.get(ident)
        if goal is None:
            return None
        if goal.is_reached(live.top.module, live.depth, entering=live.top.phase == "entry"):
            return ""
        return None

    def _leave_or_go_on(self) -> None:
        """After a stop in a second run: another step in it, or leave it."""
        ident = get_ident()
        if ident not in self._goals:
            raise Left(self._back_to.pop(ident, None))
