"""nonfinite, phase backward: NaN and Inf in gradients, at the layer whose backward made them.

Formula: a parameter's gradient has an element that is NaN or infinite; so has one that reaches no
parameter (`torch.autograd.grad`, the gradient of an input). It survives by definition: what
backward formulas make and mask again is never seen. While a gradient scaler multiplies gradients
by more than 1 it probes for overflow, and nothing is reported.

Cost: one 2-norm per parameter and backward (1 % of a step of a GPT-2-like model; shared with
`grad_norm`), and about 7 us a module to follow what backward brings (see `flows`): harmless layers
get no hook. Reading each output gradient
would cost 2 to 5 %. Kept gradients are dropped at the end of the pass; those above 16 MiB are read
at once, not kept.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar

from .. import explain
from ..flows import Flow, Maker, Pass, Passes
from ..frames import calling_frame
from ..judge import Judge
from ..modules import Call, Names
from ..ops.suspect import BackwardSuspect
from ..rules import Rule
from ..tensors import has_nonfinite, summarise, tensors_in, unseen
from ..values.owners import name_of
from .base import LOSS, Event, Watch, gradient_part, mark_as_told, was_told_before_backward

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

#: Layers of torch whose backward makes no NaN and no infinity of finite gradients: one that comes
#: into their output bad is bad in their input.
_HARMLESS = (
    *("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "Flatten", "Hardtanh", "Identity"),
    *("MaxPool1d", "MaxPool2d", "MaxPool3d", "ReLU", "ReLU6", "Unflatten"),
)
#: A tensor, its version, and what is known of it.
Followed = tuple["weakref.ref[torch.Tensor]", "int | None", Flow]
#: Of the tensors that the children of a forward have returned and received, how many are known.
_SIBLINGS = 4
#: Tensors of one output that are followed.
_MAX_OUTPUTS = 4
#: The longest tuple that is looked at for whether it holds nothing nested.
_FEW = 16
#: The part that stands for gradients of no parameter.
_ELSEWHERE = "gradients"


class NonfiniteBackward(Watch):
    """Stops inside `backward()` where a gradient turned NaN or infinite."""

    metric: ClassVar[str] = "nonfinite"
    options: ClassVar[tuple[str, ...]] = ("backward",)

    def __init__(
        self, names: Names, judge: Judge, scale_of: Callable[[torch.Tensor | None], float | None]
    ) -> None:
        self._names = names
        self._judge = judge
        self._scale_of = scale_of
        self._rules: tuple[Rule, ...] = ()
        self._passes = Passes()
        self._thread = _Outermost()

    def arm(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        if not rules:
            self._passes.forget()
        torch = sys.modules["torch"]
        self._plain: Any = torch.Tensor
        self._flat = {torch.Tensor, type(None)}
        self._harmless = frozenset(getattr(torch.nn, name, None) for name in _HARMLESS)
        self._function_modes = torch._C._len_torch_function_stack
        self._transform = torch._C._functorch.maybe_current_level

    # The forward pass: a hook on each output's node ----------------------------------------------

    def on_exit(self, call: Call, outer: list[Call], output: Any, *, hidden: bool = False) -> None:
        """Hear of the gradient of this output, and note who received whose output.

        It runs for each module, so it is one Python frame.
        """
        if self._function_modes() and not hidden:  # the program's, which sees us
            return unseen(self.on_exit)(call, outer, output, hidden=True)
        if self._transform() is not None:
            return None
        plain, args = self._plain, call.args
        if type(output) is plain:
            outputs = (output,)
        elif type(output) is tuple and len(output) <= _FEW and {*map(type, output)} <= self._flat:
            outputs = output  # tensors and None: what an attention returns
        else:
            outputs = [item for _, item in tensors_in(output, "")]
        around = outer[-1] if outer else self._thread
        module, inside = weakref.ref(call.module), weakref.ref(outer[-1].module) if outer else None
        if (
            type(call.module) in self._harmless
            and type(output) is plain
            and args
            and type(args[0]) is plain
            and "forward" not in call.module.__dict__
        ):
            passed = self._flow_into(call, outer, inside)
            if passed is not None:
                only: Any = output
                followed = weakref.ref(only), only._version, passed
                around.flow = (followed, *around.flow)[:_SIBLINGS]
                return None
        returned: list[Followed] = []
        for item in outputs:
            if item is None or item.grad_fn is None:
                continue
            version = item._version
            for followed in call.flow:
                if followed[0]() is item and followed[1] == version:  # a child's, passed on
                    flow = followed[2]
                    flow.module, flow.inside = module, inside
                    break
            else:
                if args and args[0] is item and call.version == version:
                    continue  # it returns what it got: Identity, Dropout in evaluation
                flow = Flow()
                flow.maker = flow.module = module
                flow.inside = inside
                if type(item) is plain and item._backward_hooks is None:  # `follow`, in this frame
                    item._backward_hooks = {0: partial(self._passes.came_by, flow)}
                    item.grad_fn._register_hook_dict(item)
                    item._backward_hooks = None
                else:
                    self._passes.follow(flow, item)
            returned.append((weakref.ref(item), version, flow))
            if len(returned) == _MAX_OUTPUTS:
                break
        if not returned:
            return None
        received: list[Followed] = []
        for value in (*args, *call.kwargs.values()) if call.kwargs else args:
            if type(value) is not plain or not value.requires_grad:
                continue
            version = call.version if args and value is args[0] else value._version
            made = None
            for source in (around, call, *outer[-2::-1], self._thread):
                for followed in source.flow:
                    if followed[0]() is value and followed[1] == version:
                        made = followed[2]
                        break
                if made is not None:
                    break
            else:
                if value.grad_fn is None or version != value._version:
                    continue
                made = Flow()
                made.inside = inside
                self._passes.follow(made, value)
            if made.maker is None:
                received.append((weakref.ref(value), version, made))
            for followed in returned:
                made.receivers += ((module, followed[2]),)
        around.flow = (*returned, *received, *around.flow)[:_SIBLINGS]
        return None

    def _flow_into(
        self, call: Call, outer: list[Call], inside: weakref.ref[Module] | None
    ) -> Flow | None:
        """What is known of a harmless layer's argument, and so of its output: a hook less."""
        value: Any = call.args[0]
        for source in (*reversed(outer), self._thread):
            for reference, version, flow in source.flow:
                if reference() is value and version == call.version:
                    return flow
        if value.grad_fn is None or call.version != value._version:
            return None
        flow = Flow()
        flow.inside = inside
        self._passes.follow(flow, value)
        return flow

    # The backward pass ---------------------------------------------------------------------------

    def on_engine(self, retain_graph: bool, create_graph: bool) -> None:
        """How the pass that begins treats its graph."""
        self._thread.keeps_graph, self._thread.makes_graph = retain_graph, create_graph

    def on_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """Begin a pass; from a bad loss come bad gradients, which are no news."""
        running = self._passes.begin(roots)
        tensor = sys.modules["torch"].Tensor
        running.is_spoilt = any(isinstance(root, tensor) and has_nonfinite(root) for root in roots)

    def on_parameter_gradient(
        self, owner: Module | None, name: str, parameter: torch.Tensor, norm: float | None
    ) -> None:
        """Look at the gradient's norm, and on suspicion for where it was made."""
        passes = self._passes
        running = passes.running.get(get_ident(), passes.newest)  # `current`, in this frame
        if running is None:
            return
        gradient: Any = parameter.grad
        running.unheard = 0
        if norm is None or isfinite(norm) or not has_nonfinite(gradient):
            for rule in self._rules:
                if rule.true_at:
                    rule.true_at.discard((id(owner), gradient_part(parameter)))
        elif not self._is_probe():
            running.is_bad = True
            self._look(running, owner, name, parameter, gradient)

    def on_late_gradient(self) -> None:
        """What the parameter's gradient says will come; the modules' are not kept for that long."""
        running = self._passes.current()
        if running is not None:
            running.unheard, running.is_late = 0, True

    def on_backward_end(self, results: Sequence[torch.Tensor | None]) -> None:
        """Look at gradients that reached no parameter, and drop what was kept."""
        running = self._passes.end()
        thread = self._thread
        thread.has_gradients |= thread.makes_graph
        if not (thread.makes_graph or thread.keeps_graph):
            thread.has_gradients = False
        if running is None:
            return
        try:
            if running.fault is not None:
                raise running.fault
            if not running.is_bad:
                self._look_at_results(running, results)
        finally:
            running.forget()

    def on_backward_failed(self) -> None:
        """Drop what was kept."""
        running = self._passes.end()
        if running is not None:
            running.forget()

    def _look_at_results(self, running: Pass, results: Sequence[torch.Tensor | None]) -> None:
        if results:
            found = (
                (result, f"result {place} of torch.autograd.grad")
                for place, result in enumerate(results)
                if result is not None and has_nonfinite(result)
            )
        else:
            found = ((gradient, "gradient of an output") for gradient in running.survivors())
        bad = next(found, None)
        if bad is None:
            for rule in self._rules:
                rule.true_at.discard((id(None), _ELSEWHERE))
        elif not self._is_probe():
            self._look(running, None, bad[1], None, bad[0])

    def _is_probe(self) -> bool:
        scale = self._scale_of(None)
        return scale is not None and scale > 1

    # Saying so -----------------------------------------------------------------------------------

    def _look(
        self,
        running: Pass,
        owner: Module | None,
        name: str,
        parameter: torch.Tensor | None,
        gradient: torch.Tensor,
    ) -> None:
        """Tell the rules of a bad gradient: the first of the pass, if it wasn't bad in the last.

        What the optimizer and the program make of it is then no news either.
        """
        place = (id(owner), gradient_part(parameter) if parameter is not None else _ELSEWHERE)
        news = [
            rule
            for rule in self._rules
            if rule.id not in running.told and place not in rule.true_at
        ]
        if news and not running.is_spoilt:
            self._report(running, news, owner, name, parameter, gradient)
        for rule in self._rules:
            if running.is_spoilt:
                told = was_told_before_backward(rule)
                rule.true_at.add(place)
            else:
                told = rule.id in running.told or place in rule.true_at
            if told:
                rule.true_at.update((place, (id(None), LOSS)))
                if parameter is not None:
                    mark_as_told(rule, self._names, owner, parameter)

    def _report(
        self,
        running: Pass,
        rules: Sequence[Rule],
        owner: Module | None,
        name: str,
        parameter: torch.Tensor | None,
        gradient: torch.Tensor,
    ) -> None:
        module, where, how = self._origin(running, owner)
        paths = {self._names.path(item, item) for item in (module, owner) if item is not None}
        looking = [rule for rule in rules if any(map(rule.looks_at, paths or ("",)))]
        place = (id(module), "backward")
        for rule in looking:
            rule.true_at.discard(place)  # whether it is news was decided by the gradient

        def event() -> Event:
            called = name
            if parameter is not None:
                called = f"{name_of(parameter, self._names, calling_frame(None))}.grad"
            summary = summarise(gradient, called)
            whose = [] if owner is None else [explain.gradient_of(name, self._place(owner))]
            return Event(
                name="nonfinite.backward",
                module=module,
                entered=None,
                headline=explain.headline(summary, where),
                sentences=(explain.describe(summary), *whose, how),
                value=summary.nan + summary.posinf + summary.neginf,
                tensor=summary,
                values={"gradient": gradient, "owner": owner},
                suspect=BackwardSuspect(gradient, parameter=parameter),
            )

        self._judge.measured(
            "nonfinite", True, looking, event, module=module, part="backward", option="backward"
        )
        running.told.update(rule.id for rule in looking if place in rule.true_at)

    def _origin(self, running: Pass, owner: Module | None) -> tuple[Module | None, str, str]:
        """The module in whose backward the first bad value was made, and that in words."""
        inside = "in a gradient, made in the backward of"
        if running.is_late and owner is not None:
            return owner, "in the gradient of a parameter of", explain.LATE
        flow = running.first_bad()
        if flow is None:
            if owner is None:
                return None, "in a gradient", explain.NO_MODULE
            if running.went_through(owner, self._names):
                if self._thread.has_gradients:
                    return owner, "in the gradient of a parameter of", explain.MAYBE_PAST_OUTPUTS
                return owner, inside, explain.OWN_BACKWARD
            return owner, "in the gradient of a parameter of", explain.PAST_OUTPUTS
        kind, module = running.maker(flow, self._names)
        after = None if flow.module is None else self._place(flow.module())
        if kind is Maker.MODULE:
            return module, inside, explain.made_by_receiver(after)
        if kind is Maker.FORWARD:
            return module, inside, explain.made_by_operation(after)
        if module is None:
            return None, "in a gradient", explain.NO_MODULE
        return module, "in the gradient that came into the output of", explain.MADE_OUTSIDE

    def _place(self, module: Module | None) -> str:
        if module is None:
            return "a module that is gone"
        return explain.place(module, self._names.path(module, module))


class _Outermost(threading.local):
    """What a root call is called from: the program. Flows of root outputs."""

    flow: tuple[Followed, ...] = ()
    #: Of the pass that runs, or the last: whether its graph stays, and whether it makes another.
    keeps_graph = makes_graph = False
    #: Whether gradients were taken that a pass may go through, past outputs of modules.
    has_gradients = False
