"""Layers in the backward pass: entered when the gradient of their output is there.

While a forward is stepped through, hooks are put on the autograd nodes that made each layer's
inputs and outputs. The node of an output runs when its gradient is complete: the layer is entered.
That of an input runs when all who used the input are done: the layer is left, and the gradients of
its parameters are there. Full backward hooks would wrap inputs and outputs in views, with which
networks that work in place fail; and cost eight times as much.

So `grad_input` is the gradient of the tensor that the layer was given, from all who used it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from itertools import count, islice
from threading import get_ident
from typing import TYPE_CHECKING, Any

from ..modules import Call
from ..tensors import tensors_in

if TYPE_CHECKING:
    from torch.nn import Module

#: Tensors of an input or output that are looked at.
_MAX_TENSORS = 4
_KEY = "tensorpoint.layers"


class Visit:
    """One call of a module in a forward, to be met again in the backward pass."""

    __slots__ = (
        *("__weakref__", "around", "depth", "entered_in", "gradients", "is_open", "module"),
        "thread",
    )

    def __init__(self, module: Module, around: Visit | None, depth: int, thread: int) -> None:
        self.module = weakref.ref(module)
        self.around = around
        self.depth = depth
        #: The program's thread that the forward ran on.
        self.thread = thread
        #: What backward has brought, by the names of module hooks and position.
        self.gradients: dict[str, dict[int, Any]] = {}
        #: The number of the pass that has entered it last.
        self.entered_in = 0
        #: Whether that pass is still in it.
        self.is_open = False

    def named_gradients(self) -> dict[str, Any]:
        """A tensor where there is one, else the tensors in their order."""
        return {
            name: next(iter(found.values())) if len(found) == 1 else tuple(found.values())
            for name, found in sorted(self.gradients.items(), reverse=True)
        }


#: Called at the entry (True) or exit (False) of a layer in the backward pass.
Arrive = Callable[[Visit, bool], None]


class _Pass:
    """A backward pass, from its beginning to its end on a thread of the program's."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.touched: list[Visit] = []
        #: The layer that it is in; None outside of layers.
        self.current: Visit | None = None
        #: Ids of the modules that the gradients of parameters have led to.
        self.seen: set[int] = set()


class _Hooked:
    """What the forwards of one thread have left in the graph, for the pass that comes."""

    def __init__(self) -> None:
        self.handles: list[Any] = []
        #: Modules that a pass will meet, or has met.
        self.met: weakref.WeakSet[Module] = weakref.WeakSet()

    def clear(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.met.clear()


class Backward:
    """The visits of the forwards that were stepped through, and the passes that run.

    Threads may train side by side: each has a pass of its own, and hooks.
    """

    def __init__(self, arrive: Arrive) -> None:
        self._arrive = arrive
        #: By the thread that waits for it, in the order of their beginnings.
        self._passes: dict[int, _Pass] = {}
        self._numbers = count(1)
        #: In the place of one whose beginning was not heard.
        self._unheard = _Pass(next(self._numbers))
        #: By the thread of the forward.
        self._hooked: dict[int, _Hooked] = {}

    def owner(self) -> int:
        """The program's thread that this one works for: its own, but for autograd's threads."""
        ident = get_ident()
        if not self._passes or ident in self._passes:
            return ident
        inside = sys.modules["torch"]._C._current_graph_task_id() != -1
        return next(reversed(self._passes)) if inside else ident

    @property
    def around(self) -> Visit | None:
        """The layer of the pass that this thread is in: the forward of another is no part of it."""
        running = self._passes.get(self.owner())
        return None if running is None else running.current

    @property
    def depth(self) -> int:
        """How deep in layers of the pass this thread is."""
        around = self.around
        return 0 if around is None else around.depth

    @property
    def seen(self) -> set[int]:
        """Ids of modules, of this pass alone: for whoever steps through it."""
        return self._pass_of(self.owner()).seen

    def is_met(self, module: Module) -> bool:
        """Whether a pass will meet this module by its own hooks, or has met it."""
        return any(module in hooked.met for hooked in list(self._hooked.values()))

    def begin(self) -> None:
        """A pass begins, on this thread."""
        self._passes[get_ident()] = _Pass(next(self._numbers))

    def unfinished(self) -> Visit | None:
        """The root that this thread's pass has entered and not left."""
        touched = self._pass_of(get_ident()).touched
        return next((visit for visit in touched if visit.depth == 1 and visit.is_open), None)

    def end(self) -> None:
        """This thread's pass is over; nothing of it is kept."""
        over = self._passes.pop(get_ident(), None)
        if over is None:
            over, self._unheard = self._unheard, _Pass(next(self._numbers))
        threads = {get_ident()}
        for visit in over.touched:
            visit.gradients.clear()
            threads.add(visit.thread)
        for thread in threads:
            hooked = self._hooked.pop(thread, None)
            if hooked is not None:
                hooked.clear()

    def clear(self) -> None:
        """Take all hooks out of the graph."""
        while self._hooked:
            self._hooked.popitem()[1].clear()

    def _pass_of(self, owner: int) -> _Pass:
        return self._passes.get(owner, self._unheard)

    def entered(self, call: Call, outer: Sequence[Call]) -> None:
        """A forward enters a layer."""
        if _has_no_graph():
            return
        visit = self._visit(call, outer)
        for position, (_, tensor) in enumerate(_first(tensors_in((call.args, call.kwargs), ""))):
            if tensor.grad_fn is not None:
                self._watch(tensor, visit, position, entering=False)

    def left(self, call: Call, outer: Sequence[Call], output: Any) -> None:
        """A forward has left it."""
        if _has_no_graph():
            return
        visit = self._visit(call, outer)
        for position, (_, tensor) in enumerate(_first(tensors_in(output, ""))):
            if tensor.grad_fn is not None:
                self._watch(tensor, visit, position, entering=True)
                self._hooks_of(visit).met.add(call.module)

    def _visit(self, call: Call, outer: Sequence[Call]) -> Visit:
        if call.visit is None:
            around = self._visit(outer[-1], outer[:-1]) if outer else self.around
            depth = 1 if around is None else around.depth + 1
            call.visit = Visit(call.module, around, depth, self.owner())
        return call.visit

    def _hooks_of(self, visit: Visit) -> _Hooked:
        return self._hooked.setdefault(visit.thread, _Hooked())

    def _watch(self, tensor: Any, visit: Visit, position: int, *, entering: bool) -> None:
        node, item = tensor.grad_fn, (visit, tensor.output_nr, position, entering)
        known = node.metadata.get(_KEY)
        if known is not None:
            known.append(item)
            return
        items = node.metadata[_KEY] = [item]

        def came(gradients: tuple[Any, ...]) -> None:
            self._came(items, gradients)

        self._hooks_of(visit).handles.append(node.register_prehook(came))

    def _came(self, items: list[Any], gradients: tuple[Any, ...]) -> None:
        """The gradients of a node's outputs are there: leave the layers above, enter those below.

        A layer that returns what it was given is entered and left here.
        """
        entered: list[Visit] = []
        left: list[Visit] = []
        for visit, number, position, entering in items:
            gradient = gradients[number] if number < len(gradients) else None
            if gradient is None:
                continue
            name = "grad_output" if entering else "grad_input"
            visit.gradients.setdefault(name, {})[position] = gradient
            into = entered if entering else left
            if visit not in into:
                into.append(visit)
        if not (entered or left):
            return
        running = self._running(items[0][0])
        for visit in sorted(left, key=lambda visit: -visit.depth):
            if visit.entered_in == running.number and visit not in entered:
                self._leave(visit, running)
        for visit in sorted(entered, key=lambda visit: visit.depth):
            if visit.entered_in != running.number:
                visit.entered_in, visit.is_open = running.number, True
                running.touched.append(visit)
                running.current = visit
                self._arrive(visit, True)
        for visit in sorted(left, key=lambda visit: -visit.depth):
            if visit in entered:
                self._leave(visit, running)

    def _running(self, visit: Visit) -> _Pass:
        """The pass that has come to this layer.

        A thread of autograd's that serves several passes goes for the one that the forward's own
        thread waits for.
        """
        is_ones_own = get_ident() in self._passes or visit.thread not in self._passes
        return self._pass_of(self.owner() if is_ones_own else visit.thread)

    def _leave(self, visit: Visit, running: _Pass) -> None:
        running.current, visit.is_open = visit.around, False
        self._arrive(visit, False)


def _first(tensors: Any) -> Any:
    return islice(tensors, _MAX_TENSORS)


def _has_no_graph() -> bool:
    """Whether a transform or a trace runs, in which tensors stand for others."""
    torch = sys.modules["torch"]
    return (
        torch._C._functorch.maybe_current_level() is not None
        or torch._C._get_tracing_state() is not None
        or not torch.is_grad_enabled()
    )
