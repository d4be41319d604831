"""What backward brings for the outputs of modules, and where among them a bad gradient was made.

A hook on the autograd node that made a module's output is told the gradient of that output. The
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
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

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


@dataclass(eq=False)
class Flow:
    """What backward brings for the output of one module call, or for what one received."""

    #: The module that made it, None for an operation between calls of modules.
    maker: weakref.ref[Module] | None
    #: The outermost module that returned it.
    module: weakref.ref[Module] | None
    #: The module in whose forward that is, None where no other is around.
    inside: weakref.ref[Module] | None
    output: weakref.ref[torch.Tensor]
    version: int
    #: The modules that got it as an argument, innermost first, and the flows of their outputs.
    receivers: list[tuple[weakref.ref[Module], Flow]] = field(
        default_factory=list[tuple["weakref.ref[Module]", "Flow"]]
    )
    #: The number of the pass that came by last.
    seen_in: int = -1
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
        self._roots = [node for root in roots if (node := getattr(root, "grad_fn", None))]
        #: Flows whose gradient came by last, in the order of backward.
        self._recent: deque[Flow] = deque()
        #: All of the outermost graph by the id of their node. The roots keep that alive anyway.
        self._flows: dict[int, Flow] = {}
        self._task: int | None = None
        #: The first that was let go and is bad.
        self._bad: Flow | None = None
        #: How many have come by since a parameter's gradient was found finite.
        self.unheard = 0
        self._makers: dict[Flow, tuple[Maker, Module | None]] = {}
        #: Rules that have been told of this pass's fault.
        self.told: set[int] = set()
        #: Whether a parameter's gradient was bad.
        self.is_bad = False
        #: Whether it starts from a bad loss.
        self.is_spoilt = False
        #: What went wrong in a hook on a node, where nobody is there to be told.
        self.fault: Exception | None = None

    def came_by(self, flow: Flow, gradient: torch.Tensor) -> None:
        """Backward brings `gradient` for an output of the module of `flow`."""
        inside = sys.modules["torch"]._C
        if flow.seen_in != self.number:
            flow.seen_in, flow.bad = self.number, None
        else:  # once more: in a checkpoint's own pass
            flow.bad = flow.is_bad() or None
        if gradient.numel() * gradient.element_size() > _MAX_KEPT_BYTES:
            flow.bad, flow.gradient = has_nonfinite(gradient), None
        else:
            flow.gradient = gradient.detach()
        if self._task is None:
            self._task = inside._current_graph_task_id()
        if self._task == inside._current_graph_task_id():
            flow.node = inside._current_autograd_node()
            self._flows[id(flow.node)] = flow
        self.unheard += 1
        if len(self._recent) == _KEPT:
            oldest = self._recent.popleft()
            if self.unheard > _KEPT and oldest.is_bad() and self._bad is None:
                self._bad = oldest
            elif oldest is not flow:
                oldest.gradient = None
        self._recent.append(flow)

    def first_bad(self) -> Flow | None:
        """The one at which the bad value was seen first."""
        return self._bad or next((flow for flow in self._recent if flow.is_bad()), None)

    def survivors(self) -> Iterator[torch.Tensor]:
        """Bad gradients that came by after the last parameter's and that nothing masked away."""
        tail = list(self._recent)[-self.unheard :] if self.unheard else []
        for flow in reversed(tail):
            masked = any(
                not other.is_bad() and any(receiving is flow for _, receiving in other.receivers)
                for other in tail
            )
            if flow.gradient is not None and flow.is_bad() and not masked:
                yield flow.gradient

    def forget(self) -> None:
        """Keep nothing of the program's."""
        for flow in (*self._recent, *self._flows.values()):
            flow.gradient = flow.node = None
        if self._bad is not None:
            self._bad.gradient = None
        self._recent.clear()
        self._flows.clear()
        self._makers.clear()
        self._roots, self._bad = [], None

    def went_through(self, owner: Module, names: Names) -> bool:
        """Whether gradients came into an output of `owner`: its own or one that it passed on."""
        this = weakref.ref(owner)
        for flow in self._flows.values():
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
                top = self._flows.get(id(node))
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


def _is_in(inner: weakref.ref[Module] | None, outer: Module, names: Names) -> bool:
    """Whether `inner` is `outer` or below it."""
    module = None if inner is None else inner()
    if module is None or module is outer:
        return module is outer
    path = names.path(outer, outer)
    return not path or names.path(module, module).startswith(path + ".")
