"""What backward brings for the outputs of modules, and where among them a bad gradient was made.

A hook on a module's output is told the gradient of that output. (Hooks that the program puts on
the same tensor later run after it: what they make of the gradient is seen at the next output.) The
last few are kept until the pass has gone on; when a parameter's gradient turns out bad, the first
bad one among them tells where the value was made: between that output and the gradients above it,
which are finite. The nodes of the graph in between tell who computed there: a module that received
this output, or the forward around it, or what the program computes from a model's output.

A gradient is let go unread once a parameter's finite gradient has come after it; where none comes,
as in frozen layers, it is read then: one sum per module of such a stretch.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import partial
from itertools import count
from threading import get_ident
from typing import TYPE_CHECKING, Any

from . import debugger
from .modules import Names
from .tensors import has_nonfinite

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

_KEPT = 8
_MAX_KEPT_BYTES = 16 << 20
_MAX_NODES = 100_000
#: Nodes by how likely their backward makes a NaN or an infinity of finite gradients: those that
#: add, copy and pick never do; products and their like only by an overflow; any other may.
_COPIES, _PRODUCTS = (
    tuple(f"{name}Backward" for name in names)
    for names in (
        (
            *("Add", "Alias", "AsStrided", "Cat", "Clone", "Expand", "Gather", "Index", "Neg"),
            *("IndexSelect", "MaskedFill", "Permute", "Relu", "Repeat", "Reshape", "Select"),
            *("Slice", "Split", "Squeeze", "Stack", "Sub", "Sum", "T", "ToCopy", "Transpose"),
            *("Unbind", "UnsafeSplit", "UnsafeView", "Unsqueeze", "View", "Where"),
        ),
        (
            *("Addmm", "Bmm", "Convolution", "Embedding", "Gelu", "LogSoftmax", "Mean", "Mm"),
            *("Mul", "NativeDropout", "NativeLayerNorm", "ScaledDotProductAttention", "Sigmoid"),
            *("ScaledDotProductFlashAttentionForCpu", "Silu", "Softmax", "Tanh"),
        ),
    )
)


def _suspicion(node: Any) -> int:
    name = node.name()
    return 0 if name.startswith(_COPIES) else 1 if name.startswith(_PRODUCTS) else 2


class Maker(Enum):
    """Where a bad gradient was made."""

    MODULE = "in the backward of a module"
    FORWARD = "in the backward of an operation in a module's forward"
    PROGRAM = "in the backward of what the program does with a model's output"


class Flow:
    """What backward brings for the output of one module call, or for what one received.

    Made for each module, so without `__init__`, a Python frame: whoever makes one sets the fields
    that have no value here.
    """

    #: The module that made it, None for an operation between calls of modules.
    maker: weakref.ref[Module] | None = None
    #: The outermost module that returned it.
    module: weakref.ref[Module] | None = None
    #: The module in whose forward that is, None where no other is around.
    inside: weakref.ref[Module] | None
    #: The modules that got it as an argument, innermost first, and the flows of their outputs.
    receivers: tuple[tuple[weakref.ref[Module], Flow], ...] = ()
    #: The number of the pass that came by last.
    seen_in = -1
    gradient: torch.Tensor | None = None
    #: The node that made the output, while it is in a pass.
    node: Any = None
    #: None as long as nobody has looked.
    bad: bool | None = None

    def is_bad(self) -> bool:
        """Whether the gradient that came in is non-finite, as far as it was kept."""
        if self.bad is None and self.gradient is not None:
            self.bad = has_nonfinite(self.gradient)
        return bool(self.bad)


class Pass:
    """One backward pass, from the program's call to its end."""

    def __init__(self, number: int, roots: Sequence[Any], state: Any) -> None:
        self.number = number
        #: Of its thread: a backward that the user evaluates while suspended is not the program's.
        self.state = state
        inside = sys.modules["torch"]._C
        self.current_task = inside._current_graph_task_id
        self.current_node = inside._current_autograd_node
        self._roots = [node for root in roots if (node := getattr(root, "grad_fn", None))]
        #: Flows whose gradient came by last, in the order of backward.
        self.recent: deque[Flow] = deque()
        #: All of the outermost graph by the id of their node. The roots keep that alive anyway.
        self.flows: dict[int, Flow] = {}
        #: The number that autograd gives the outermost graph.
        self.task: int | None = None
        #: The first that was let go and is bad.
        self.bad: Flow | None = None
        #: How many have come by since a parameter's gradient.
        self.unheard = 0
        self._makers: dict[Flow, tuple[Maker, Module | None]] = {}
        #: Rules that have been told of this pass's fault.
        self.told: set[int] = set()
        #: Whether a parameter's gradient was bad.
        self.is_bad = False
        #: Whether it starts from a bad loss.
        self.is_spoilt = False
        #: Whether parameters' gradients are read at its end.
        self.is_late = False
        #: What went wrong in a hook on a node, where nobody is there to be told.
        self.fault: Exception | None = None

    def first_bad(self) -> Flow | None:
        """The one at which the bad value was seen first."""
        return self.bad or next((flow for flow in self.recent if flow.is_bad()), None)

    def survivors(self) -> Iterator[torch.Tensor]:
        """Bad gradients that came by after the last parameter's and that nothing masked away."""
        tail = list(self.recent)[-self.unheard :] if self.unheard else []
        for flow in reversed(tail):
            masked = any(
                not other.is_bad() and any(receiving is flow for _, receiving in other.receivers)
                for other in tail
            )
            if flow.gradient is not None and flow.is_bad() and not masked:
                yield flow.gradient

    def forget(self) -> None:
        """Keep nothing of the program's."""
        for flow in (*self.recent, *self.flows.values()):
            flow.gradient = flow.node = None
        if self.bad is not None:
            self.bad.gradient = None
        self.recent.clear()
        self.flows.clear()
        self._makers.clear()
        self._roots, self.bad = [], None

    def went_through(self, owner: Module, names: Names) -> bool:
        """Whether gradients came into an output of `owner`: its own or one that it passed on."""
        this = weakref.ref(owner)
        for flow in self.flows.values():
            outermost = None if flow.module is None else flow.module()
            if flow.maker is not None and outermost is not None:
                if _is_in(flow.maker, owner, names) and _is_in(this, outermost, names):
                    return True
        return False

    # Who made it ---------------------------------------------------------------------------------

    def maker(self, flow: Flow, names: Names) -> tuple[Maker, Module | None]:
        """Where the gradient of `flow`, the first that is bad, was made of finite ones."""
        if flow not in self._makers:
            self._makers[flow] = self._find_maker(flow, names)
        return self._makers[flow]

    def _find_maker(self, flow: Flow, names: Names) -> tuple[Maker, Module | None]:
        above = self._next_above(flow)
        for receiver, other in flow.receivers:
            module = receiver()
            if module is None or other.seen_in != self.number or other.is_bad():
                continue
            if above is None or all(
                top is other or (top is not None and _is_in(top.maker or top.inside, module, names))
                for top in above
            ):
                return Maker.MODULE, module
        around = flow.inside() if flow.inside is not None else None
        if around is None or (above is not None and None in above):
            return Maker.PROGRAM, None if flow.module is None else flow.module()
        return Maker.FORWARD, around

    def _next_above(self, flow: Flow) -> set[Flow | None] | None:
        """The flows next above `flow` by way of the operations most likely to have made it.

        None among them stands for the end of the graph: no module's output is on the way. None
        instead is for a graph that is not known: one of a checkpoint's own.
        """
        users = self._users()
        found: list[tuple[int, set[Flow | None]]] = []
        for first in users.get(id(flow.node), ()):
            waiting, seen, reached, suspicion = [first], {id(first)}, set[Flow | None](), 0
            while waiting:
                node = waiting.pop()
                suspicion = max(suspicion, _suspicion(node))
                top = self.flows.get(id(node))
                if top is not None and not top.is_bad():
                    reached.add(top)
                    continue
                above = users.get(id(node))
                if above is None:
                    reached.add(None)
                for user in above or ():
                    if id(user) not in seen:
                        seen.add(id(user))
                        waiting.append(user)
            found.append((suspicion, reached))
        if not found:
            return None
        most = max(suspicion for suspicion, _ in found)
        return set[Flow | None]().union(
            *(reached for suspicion, reached in found if suspicion == most)
        )

    def _users(self) -> dict[int, list[Any]]:
        """The nodes that take what each node makes, by the id of its Python object."""
        users: dict[int, list[Any]] = {}
        waiting, seen = list(self._roots), {id(node): node for node in self._roots}
        while waiting and len(seen) < _MAX_NODES:
            node = waiting.pop()
            for inner, _ in node.next_functions:
                if inner is None:
                    continue
                users.setdefault(id(inner), []).append(node)
                if id(inner) not in seen:
                    seen[id(inner)] = inner
                    waiting.append(inner)
        return users


class Passes:
    """The backward passes that run now."""

    def __init__(self) -> None:
        #: By the thread that called them.
        self.running: dict[int, Pass] = {}
        #: The one begun last: that of hooks on autograd's own threads.
        self.newest: Pass | None = None
        self._numbers = count()

    def begin(self, roots: Sequence[Any]) -> Pass:
        """The program starts a pass on this thread."""
        running = Pass(next(self._numbers), roots, debugger.thread_state())
        self.running[get_ident()] = self.newest = running
        return running

    def current(self) -> Pass | None:
        """The pass that a hook on this thread runs in."""
        return self.running.get(get_ident(), self.newest)

    def end(self) -> Pass | None:
        """The pass of this thread is over."""
        running = self.running.pop(get_ident(), None)
        if running is self.newest:
            self.newest = None
        return running

    def forget(self) -> None:
        """Listen to none of those that run."""
        for running in list(self.running.values()):
            running.forget()
        self.running.clear()
        self.newest = None

    def follow(self, flow: Flow, tensor: Any) -> None:
        """Hear of the gradient of `tensor`, which has a node, for `flow`.

        By what `Tensor.register_hook` does, without its handle: after a large kernel, when all of
        that is cold, it takes 28 us in place of the 70 of a hook on the node.
        """
        hook: Any = partial(self.came_by, flow)
        if type(tensor) is sys.modules["torch"].Tensor and tensor._backward_hooks is None:
            tensor._backward_hooks = {0: hook}
            tensor.grad_fn._register_hook_dict(tensor)
            tensor._backward_hooks = None  # the node has them now
        else:
            number = tensor.output_nr
            tensor.grad_fn.register_prehook(lambda gradients: hook(*gradients[number : number + 1]))

    def came_by(self, flow: Flow, gradient: torch.Tensor | None = None) -> None:
        """The hook on what `flow` is about; once per module and pass."""
        running = self.running.get(get_ident(), self.newest)
        if running is None or running.state.is_in_wait_loop or gradient is None:
            return
        try:
            if flow.seen_in != running.number:
                flow.seen_in, flow.bad = running.number, None
            else:  # once more: in a checkpoint's own pass
                flow.bad = flow.is_bad() or None
            if gradient.numel() * gradient.element_size() > _MAX_KEPT_BYTES:
                flow.bad, flow.gradient = has_nonfinite(gradient), None
            else:
                flow.gradient = gradient
            task = running.current_task()
            if running.task is None:
                running.task = task
            if running.task == task:
                flow.node = node = running.current_node()
                running.flows[id(node)] = flow
            running.unheard += 1
            recent = running.recent
            if len(recent) == _KEPT:
                oldest = recent.popleft()
                if running.unheard > _KEPT and oldest.is_bad() and running.bad is None:
                    running.bad = oldest
                elif oldest is not flow:
                    oldest.gradient = None
            recent.append(flow)
        except Exception as error:  # the program must not die of it; told at the end
            running.fault = error


def _is_in(inner: weakref.ref[Module] | None, outer: Module, names: Names) -> bool:
    """Whether `inner` is `outer` or below it."""
    module = None if inner is None else inner()
    if module is None or module is outer:
        return module is outer
    path = names.path(outer, outer)
    return not path or names.path(module, module).startswith(path + ".")
