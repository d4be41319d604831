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
from itertools import islice
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

    __slots__ = ("__weakref__", "around", "depth", "entered_in", "gradients", "is_open", "module")

    def __init__(self, module: Module, around: Visit | None, depth: int) -> None:
        self.module = weakref.ref(module)
        self.around = around
        self.depth = depth
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


class Backward:
    """The visits of the forwards that were stepped through, and the pass that runs."""

    def __init__(self, arrive: Arrive, owner: Callable[[], int]) -> None:
        self._arrive = arrive
        #: The program's thread that this one works for.
        self._owner = owner
        #: The thread that the pass was begun on.
        self._thread = 0
        self._handles: list[Any] = []
        self._number = 0
        self._touched: list[Visit] = []
        #: The layer that the pass is in; None outside of layers and passes.
        self.current: Visit | None = None
        #: Modules that a pass will meet, or has met.
        self.met: weakref.WeakSet[Module] = weakref.WeakSet()

    @property
    def around(self) -> Visit | None:
        """The layer of the pass that this thread is in: the forward of another is no part of it."""
        return None if self.current is None or self._owner() != self._thread else self.current

    @property
    def depth(self) -> int:
        """How deep in layers of the pass this thread is."""
        around = self.around
        return 0 if around is None else around.depth

    def begin(self) -> None:
        """A pass begins."""
        self._number += 1
        self._thread = get_ident()
        self.current = None

    def end(self) -> None:
        """It is over; nothing of it is kept."""
        for visit in self._touched:
            visit.gradients.clear()
        self._touched.clear()
        self.current = None
        self.clear()

    def unfinished(self) -> Visit | None:
        """The root that the pass has entered and not left."""
        return next((visit for visit in self._touched if visit.depth == 1 and visit.is_open), None)

    def clear(self) -> None:
        """Take all hooks out of the graph."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.met.clear()

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
                self.met.add(call.module)

    def _visit(self, call: Call, outer: Sequence[Call]) -> Visit:
        if call.visit is None:
            around = self._visit(outer[-1], outer[:-1]) if outer else self.around
            depth = 1 if around is None else around.depth + 1
            call.visit = Visit(call.module, around, depth)
        return call.visit

    def _watch(self, tensor: Any, visit: Visit, position: int, *, entering: bool) -> None:
        node, item = tensor.grad_fn, (visit, tensor.output_nr, position, entering)
        known = node.metadata.get(_KEY)
        if known is not None:
            known.append(item)
            return
        items = node.metadata[_KEY] = [item]

        def came(gradients: tuple[Any, ...]) -> None:
            self._came(items, gradients)

        self._handles.append(node.register_prehook(came))

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
        for visit in sorted(left, key=lambda visit: -visit.depth):
            if visit.entered_in == self._number and visit not in entered:
                self._leave(visit)
        for visit in sorted(entered, key=lambda visit: visit.depth):
            if visit.entered_in != self._number:
                visit.entered_in, visit.is_open = self._number, True
                self._touched.append(visit)
                self.current = visit
                self._arrive(visit, True)
        for visit in sorted(left, key=lambda visit: -visit.depth):
            if visit in entered:
                self._leave(visit)

    def _leave(self, visit: Visit) -> None:
        self.current, visit.is_open = visit.around, False
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
