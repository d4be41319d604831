"""What a program computes of its models' outputs, up to the gradient of it: a loss.

Nobody can run that again. Its forward is recorded as it runs (see `precise`); in its backward each
node is looked at by a hook that autograd calls after it, while what the node has saved is still
there: so a node that makes a bad gradient of good ones is run once more, below the recorder, which
names the operation. The bad gradient is followed from node to node, and told once it has left.

A checkpoint computes its part of the loss again in the middle of the backward. A reentrant one runs
a backward of its own there: its forward is recorded and its nodes are looked at as those around it.

Costs a Python call and a sum for each node; a model's own nodes have no hook,
but where the gradient of a gradient is taken: that comes to them past the output.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from .. import debugger, quiet
from ..tensors import QuickLook, has_nonfinite, quick_look
from .dispatch import has_nan, leave
from .forwards import Behind, Forwards, sequence_number
from .made import Made
from .operation import Operation
from .recomputed import is_reentrant, unpacked_again
from .recorder import Describe, NotReplayable, Recorder
from .state import Written, restored

if TYPE_CHECKING:
    from torch.nn import Module

#: Calls of models before a backward whose losses are known: those of a GAN's step, two views, ...
_MAX_CALLS = 8
#: Of them, and of backwards that keep their graph, before all that is known is dropped.
_MAX_AGE = 64
#: Nodes that get a hook, and of those the ones that are run once more.
_MAX_NODES, _MAX_PRODUCERS = 20_000, 16


@dataclass(frozen=True)
class ModelCall:
    """A call of a root, by the numbers of the autograd nodes made in it: `first` to `end`."""

    root: ref[Module]
    first: int
    end: int


@dataclass(eq=False)
class AfterModel:
    """The forward of it, on one thread, to a backward.

    It begins with the node `begin`: that of a model's call, or of whatever comes first after a
    backward or a step, in a program that has computed losses of what no model had made.
    """

    recorder: Recorder
    forwards: Forwards
    begin: int
    calls: deque[ModelCall] = field(default_factory=lambda: deque(maxlen=_MAX_CALLS))
    #: Whether a gradient was taken that is itself differentiable.
    has_gradients: bool = False
    #: Whether a backward went through some of it: a call of a model begins another.
    is_old: bool = False
    #: Calls of models, and backwards that kept their graph.
    _age: int = 0

    def add(self, call: ModelCall) -> None:
        """The program goes on with the output of `call`."""
        self._age += 1
        if len(self.calls) == _MAX_CALLS:
            self.begin = max(self.begin, self.calls[0].end)
            self.forwards.forget_before(self.begin)
        self.calls.append(call)

    def was_kept(self) -> None:
        """A backward through it has kept its graph."""
        self._age += 1

    @property
    def is_worn_out(self) -> bool:
        """Whether it seems to have no end: what it holds would become ever more."""
        return self._age > _MAX_AGE

    def holds(self, number: int) -> bool:
        """Whether the node of this number is looked at in the backward."""
        return self.begin <= number and (self.has_gradients or self.call_of(number) is None)

    def call_of(self, number: int) -> ModelCall | None:
        """The call of a model in which this node was made."""
        return next((call for call in self.calls if call.first <= number < call.end), None)

    def left_by(self, backward: AfterModelBackward) -> AfterModel | None:
        """What is left of it after a backward: losses of models that it did not come to."""
        left = [call for call in backward.before if call not in backward.passed]
        if not left:
            return None
        self.calls = deque(left, maxlen=_MAX_CALLS)
        self.forwards.forget(backward.numbers)
        self.is_old = True
        return self


@dataclass(frozen=True, eq=False)
class Producer:
    """A node that has made a bad gradient of good ones, and the operation in it."""

    made: Made
    #: The node of the model's forward that it is part of, and the call of that: who knows its line.
    behind: Behind | None
    call: ModelCall | None

    def at(self, forward: Operation) -> Producer:
        """The same, where `forward` is the model's operation that is behind it."""
        operation, lines = self.made.operation, forward.lines
        assert operation is not None
        # Of a gradient's gradient it is that of the first backward, at the line of the forward.
        own = replace(operation.forward or forward, lines=lines)
        known = replace(operation, lines=lines, forward=own)
        return replace(self, made=replace(self.made, lines=lines, operation=known))


class AfterModelBackward:
    """The hooks on the nodes of one backward pass."""

    def __init__(
        self,
        after: AfterModel,
        roots: Sequence[Any],
        describe: Describe,
        on_fault: Callable[[Exception], None],
    ) -> None:
        self._after = after
        self._describe = describe
        self._on_fault = on_fault
        self._quick_look: QuickLook = quick_look()
        #: By the node to which a bad gradient went: who made it.
        self._bad: dict[Any, Producer | None] = {}
        #: The same for nodes without a hook: there it has left.
        self._left: dict[Any, Producer] = {}
        self._count = 0
        self._handles: list[Any] = []
        self._hooked: set[Any] = set()
        #: Reentrant checkpoints that are run, innermost last, and what records their forward.
        self._checkpoints: list[Any] = []
        self._mode: Any = None
        #: The models' calls before it (a checkpoint adds others), and those that it comes to.
        self.before = tuple(after.calls)
        self.passed: set[ModelCall] = set()
        #: The numbers of the nodes that it looks at.
        self.numbers: set[int] = set()
        #: Whether it comes to what was computed before all that is known.
        self.has_earlier = False
        self._look_at(roots)

    def _look_at(self, roots: Sequence[Any]) -> None:
        for node in self._nodes(roots):
            self._hooked.add(node)
            self._handles.append(node.register_hook(partial(self._ran, node)))
            if is_reentrant(node):
                self._handles.append(node.register_prehook(partial(self._recompute, node)))

    def _recompute(self, node: Any, gradients: tuple[Any, ...]) -> None:
        """A reentrant checkpoint is about to compute its forward again."""
        if quiet.is_quiet() or debugger.evaluating():
            return
        try:
            self._checkpoints.append(node)
            self.record()
        except Exception as error:  # the program must not die of it
            self._on_fault(error)

    def record(self) -> None:
        """In the forward of a reentrant checkpoint: record it, if the program has no mode on."""
        recorder = self._after.recorder
        modes = sys.modules["torch"]._C._len_torch_dispatch_stack()
        if self._checkpoints and self._mode is None and not modes and recorder.fault is None:
            recorder.is_active = True
            self._mode = recorder.mode()
            self._mode.__enter__()

    def pause(self) -> None:
        """Record nothing: that forward is over, or calls a model."""
        if self._mode is not None:
            self._after.recorder.is_active = False
            if leave(self._mode):
                self._mode = None

    def on_inner(self, roots: Sequence[Any]) -> None:
        """A backward begins in the one that runs: a checkpoint's own, from what it has computed."""
        running = sys.modules["torch"]._C._current_autograd_node()
        if not self._checkpoints or self._checkpoints[-1] is not running:
            return
        self.pause()
        for root in roots:
            self._bad[getattr(root, "grad_fn", None)] = self._bad.get(running)
        self._look_at(roots)

    def remove(self) -> None:
        """Take the hooks out again."""
        self._mode = None  # if that forward has raised, autograd has left all modes of its own
        self._after.recorder.is_active = False
        self._checkpoints.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooked.clear()
        self._bad.clear()
        self._left.clear()

    def producer(self, parameter: Any) -> Producer | None:
        """Who made the bad gradient of `parameter`, else the first that came to a model."""
        for node, producer in self._left.items():
            if parameter is not None and getattr(node, "variable", None) is parameter:
                return producer
        return next(iter(self._left.values()), None)

    def _nodes(self, roots: Sequence[Any]) -> Iterator[Any]:
        tensor, waiting = sys.modules["torch"].Tensor, deque[Any]()
        for root in roots:
            if isinstance(root, tensor) and root.grad_fn is not None:
                if has_nonfinite(root):  # all that comes of it is bad, and is no news
                    self.passed.update(self._after.calls)
                else:
                    waiting.append(root.grad_fn)
        seen, end = set(waiting), sequence_number()
        while waiting and len(self._handles) < _MAX_NODES:
            node = waiting.popleft()
            # (Those that accumulate have a number above all others.)
            number = node._sequence_nr()
            if number >= end:
                continue
            call = self._after.call_of(number)
            if call is not None:
                self.passed.add(call)
            if not self._after.holds(number):
                self.has_earlier |= call is None
                continue
            self.numbers.add(number)
            yield node
            for child, _ in node.next_functions:
                if child is not None and child not in seen:
                    seen.add(child)
                    waiting.append(child)

    def _ran(self, node: Any, made: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        """A node has made gradients of those that it was given."""
        if quiet.is_quiet() or debugger.evaluating():
            return
        try:
            inner = self._end_of_checkpoint(node, made)
            bad = [place for place, gradient in enumerate(made) if self._is_bad(gradient)]
            if not bad:
                return
            if any(map(self._is_bad, given)):
                producer = self._bad.get(node)
            else:
                producer = self._producer(node, made, given, bad[0])
            for place in bad:
                child = node.next_functions[place][0]
                source = inner.get(id(made[place])) or producer
                if child in self._hooked:
                    self._bad[child] = source or self._bad.get(child)
                elif source is not None:
                    self._left.setdefault(child, source)
        except Exception as error:  # the program must not die of it
            self._on_fault(error)

    def _end_of_checkpoint(self, node: Any, made: tuple[Any, ...]) -> dict[int, Producer]:
        """Of a reentrant one: who in it made the gradients of its inputs, by the id of each."""
        if not self._checkpoints or self._checkpoints[-1] is not node:
            return {}
        self._checkpoints.pop()
        inner: dict[int, Producer] = {}
        for leaf, producer in list(self._left.items()):
            variable = getattr(leaf, "variable", None)
            if variable is not None and any(variable.grad is gradient for gradient in made):
                inner[id(variable.grad)] = producer
                del self._left[leaf]
        return inner

    def _is_bad(self, gradient: Any) -> bool:
        return (
            gradient is not None
            and self._quick_look(gradient, None) is None
            and has_nonfinite(gradient)
        )

    def _producer(
        self, node: Any, results: tuple[Any, ...], given: tuple[Any, ...], place: int
    ) -> Producer | None:
        """A node that has made a bad gradient of good ones; None if it may do more than compute."""
        function = getattr(type(node), "_forward_cls", None)
        if self._count == _MAX_PRODUCERS or getattr(function, "__module__", "")[:6] == "torch.":
            return None
        self._count += 1
        made = self._run_again(node if function is None else node.apply, given)
        if made is None:
            made = self._as_a_whole(node, results, given, place)
        elif made.is_from_outside:
            return None
        number = node._sequence_nr()
        behind = self._after.forwards.behind(number)
        call = self._after.call_of(number if behind is None else behind.number)
        if behind is None and call is not None:
            behind = Behind(number, node.name())
        return Producer(made, behind, call)

    def _run_again(self, act: Callable[..., Any], given: tuple[Any, ...]) -> Made | None:
        """The operation in the node; None for one that can't be run again."""
        written = Written([])
        recorder = self._after.recorder.again(written)
        with ExitStack() as stack:
            stack.enter_context(debugger.untraced())
            stack.enter_context(quiet.on_this_thread())
            stack.enter_context(quiet.held_back())
            stack.enter_context(restored([], (), written))
            stack.enter_context(unpacked_again())
            try:
                with recorder.mode(runs_node=True):
                    results = act(*given)
            except (Exception, NotReplayable):
                return None  # it raised nothing when the program ran it, and that goes on
        if recorder.fault is not None:
            raise recorder.fault
        found = recorder.bad_in(results)
        way = [] if found is None else found.likely_way()
        return way[0] if way and way[0].operation is not None else None

    def _as_a_whole(
        self, node: Any, results: tuple[Any, ...], given: tuple[Any, ...], place: int
    ) -> Made:
        """The node itself in place of its operation."""
        number, name, bad = node._sequence_nr(), node.name(), results[place]
        lines = self._after.forwards.lines(number)
        gradients = [gradient for gradient in given if gradient is not None]
        operation = Operation(
            name=name,
            full_name=name,
            arguments={f"grad_output_{place}": one for place, one in enumerate(gradients)},
            outputs=(bad,),
            phase="backward",
            node=name,
            forward=self._after.forwards.operation(node),
            lines=lines,
        )
        made = Made(
            name=name,
            full_name=name,
            number=0,
            has_nan=has_nan(bad),
            elements=bad.numel(),
            is_view=False,
            sources={},
            lines=lines,
            has_own_line=False,
            in_backward=True,
            operation=operation,
        )
        made.cause, made.operands = self._describe(operation)
        return made
