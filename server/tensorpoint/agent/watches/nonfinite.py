"""nonfinite, phases input and forward: NaN and Inf in the batch, or fresh in the forward pass.

Formula: a module's call is *fresh non-finite* if an element of its output is NaN or infinite and
all of its arguments, parameters and buffers are finite. The innermost such call is the producer;
modules that merely pass the value on are not. Deliberate -inf (masks) counts as finite.

Cost: one `x.sum()` per module output (see `tensors`), skipped for a container that returns its
last child's output unchanged and for a layer that can't make a NaN of what it was given. Arguments
and parameters are looked at only on suspicion. On CUDA the sums are not waited for (see `slots`):
they are read once a step, and once one was bad each layer is looked at as it returns.

Source of the criterion: ARCHITECTURE "Non-finite, precisely" (docs/architecture.md).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

from ...wire import TensorSummary
from .. import explain
from ..judge import Judge
from ..masks import hands_on_masks, is_masked_output
from ..modules import Call, Names, keywords_of
from ..ops.suspect import ForwardSuspect, LossSuspect
from ..rules import Rule
from ..slots import Slots
from ..tensors import (
    QuickLook,
    Seen,
    has_nonfinite,
    quick_look,
    remember,
    same,
    tensors_in,
)
from .base import LOSS, STATE, Event, Watch
from .nonfinite_values import (
    bad_arguments,
    bad_parameter,
    is_only_neginf,
    masked_arguments,
    nonfinite_in,
    own_state,
)

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

#: Layers of torch that make no NaN and no infinity of finite values: given what was just found
#: finite, their output isn't read.
_KEEPERS = ("Flatten", "Hardtanh", "Identity", "MaxPool1d", "MaxPool2d", "ReLU", "ReLU6")
#: They divide by 1 - p, which overflows float16. In wider types that takes numbers next to 3e38; if
#: there are any, the layer that receives the infinity is stopped at.
_DROPOUTS = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d")
_WIDE = ("float32", "bfloat16", "float64")
#: The place of the loss, which belongs to no module.
_LOSS = (id(None), LOSS)


class Nonfinite(Watch):
    """Stops at the call that turned finite values into a NaN or an infinity."""

    metric: ClassVar[str] = "nonfinite"
    options: ClassVar[tuple[str, ...]] = ("input", "forward")

    def __init__(self, names: Names, judge: Judge) -> None:
        self._names = names
        self._judge = judge
        self._rules: tuple[Rule, ...] = ()
        self._every: tuple[Rule, ...] = ()
        self._look: QuickLook
        self._keepers: frozenset[Any] = frozenset()
        self._dropouts: frozenset[Any] = frozenset()
        self._wide: frozenset[Any] = frozenset()
        #: Per thread: whether the last root's output was bad, so that what is computed from it (a
        #: loss module's argument) isn't taken for a bad batch.
        self._thread = threading.local()
        #: Sums of outputs that are not waited for, until one was bad.
        self._slots = Slots()
        self._is_precise = False
        self._is_remote: Callable[[Any], bool] = lambda tensor: tensor.is_cuda

    def arm(self, rules: Sequence[Rule]) -> None:
        self._look = quick_look()
        self._slots, self._is_precise = Slots(), False
        torch = sys.modules["torch"]
        self._function_modes = torch._C._len_torch_function_stack
        self._plain: Any = torch.Tensor
        self._keepers = frozenset(getattr(torch.nn, name, None) for name in _KEEPERS + _DROPOUTS)
        self._dropouts = frozenset(getattr(torch.nn, name, None) for name in _DROPOUTS)
        self._wide = frozenset(getattr(torch, name) for name in _WIDE)
        if not self._rules:
            self._thread = threading.local()  # what was seen before is of another watch
        self._rules = tuple(rules)
        self._every = tuple(rule for rule in rules if rule.every_observation)

    # The batch ---------------------------------------------------------------------------------

    def on_root(self, call: Call) -> None:
        """Look at the arguments of a root module's call: the batch."""
        self._read_slots()
        if sys.modules["torch"]._C._current_graph_task_id() != -1:
            return  # a checkpointed block run again inside backward(), not a batch
        bad = next(bad_arguments(call), None)
        if bad is None or getattr(self._thread, "spoilt", False):
            for rule in self._rules:
                rule.true_at.discard((id(call.module), "input"))
            return
        event = Event(
            name="nonfinite.input",
            module=call.module,
            entered=call.module,
            headline=explain.headline(bad, "in the input of"),
            sentences=(explain.describe(bad), explain.input_origin(call.module, bad)),
            value=bad.nan + bad.posinf + bad.neginf,
            tensor=bad,
            values={"inputs": call.args, "keyword_inputs": keywords_of(call)},
        )
        self._tell(self._rules, call, [call], "input", "input", event)

    # The forward pass --------------------------------------------------------------------------

    def on_exit(self, call: Call, outer: list[Call], output: object) -> None:
        """Look at a module's output, and on suspicion for the call that made it.

        It runs for each module: in the usual case it is two Python frames, with that of the look.
        """
        seen, look = None, self._look
        if type(call.module) in self._keepers and outer and call.args:
            # What it received is what a call before it returned, found finite.
            for around in outer[-2:]:
                checked = around.checked
                if checked and checked[0]() is call.args[0] and checked[1] == call.version:
                    seen = self._keep(call, output)
        is_finite = bad = False
        if seen is not None:
            is_finite = True
        elif type(output) is tuple:  # `attention(x)` returns its output and None, or the weights
            seen = None
            for item in output:
                if item is not None and look(item, call.checked) is None:
                    break
            else:
                is_finite = True
        else:
            seen = look(output, call.checked)
            is_finite = seen is not None
        if not is_finite and not self._defer(call, output):
            bad = self._look_closer(call, outer, output)
            seen = None if bad else remember(output)
        if not outer:
            self._thread.spoilt = bad
            self._slots.send()
        elif seen is not None:
            outer[-1].checked = seen
        for rule in self._rules:
            if rule.true_at:
                self._rearm(rule, call)
        for rule in self._every:
            self._observe_finite(rule, call)

    def _keep(self, call: Call, output: Any) -> Seen | None:
        """What to remember of a layer's output that is finite since what it received is."""
        if type(output) is not self._plain or self._function_modes() or output.is_inference():
            return None
        if type(call.module) in self._dropouts and output.dtype not in self._wide:
            return None
        if "forward" in call.module.__dict__:
            return None
        return ref(output), output._version

    def _defer(self, call: Call, output: Any) -> bool:
        """Leave the look at an output on CUDA to the end of the step."""
        torch = sys.modules["torch"]
        if type(output) is not torch.Tensor or torch._C._len_torch_function_stack():
            return False
        if self._is_precise or not self._is_remote(output):
            return False
        plain = output.layout is torch.strided and output.is_floating_point()
        if not plain or torch._C._functorch.maybe_current_level() is not None:
            return False
        if output.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        return self._slots.add(call.module, self._names.step(call.module), output)

    def on_before_update(self, optimizer: Any) -> None:
        """The parameters are about to change: the last moment to look at the step."""
        self._read_slots()

    def _read_slots(self) -> None:
        found, suspicious = self._slots.read()
        self._is_precise |= suspicious
        if found is None:
            return
        module, kind = found.module, "Inf" if found.value > 0 else "NaN"
        path = self._names.path(module, module)
        event = Event(
            name="nonfinite.forward",
            module=module,
            entered=None,
            headline=f"{kind} in the output of",
            sentences=(explain.DEFERRED,),
            values={"module": module},
        )
        looking = [rule for rule in self._rules if rule.looks_at(path)]
        self._thread.spoilt = True
        self._judge.measured(
            "nonfinite",
            True,
            looking,
            lambda: event,
            module=module,
            part="forward",
            option="forward",
        )

    def _look_closer(self, call: Call, outer: list[Call], output: object) -> bool:
        """Whether the output is bad, having stopped for it if that is news."""
        if not self._holds_nonfinite(call, output):
            return False
        bad = self._real_faults(call, output)
        if bad:
            self._look_for_producer(call, outer, bad[0], output)
        else:
            for around in outer:
                around.masked_inside = True
        return bool(bad)

    def _holds_nonfinite(self, call: Call, output: object) -> bool:
        # A container returns what its last child did: that was looked at already.
        look, seen = self._look, call.checked
        return any(
            look(tensor, seen) is None and not same(tensor, seen) and has_nonfinite(tensor)
            for _, tensor in tensors_in(output, "output")
        )

    def _real_faults(self, call: Call, output: object) -> list[TensorSummary]:
        """The non-finite tensors of `output`, but for deliberate -inf."""
        masked_inputs = any(True for _ in masked_arguments(call))
        return [
            summary
            for tensor, summary in nonfinite_in(output, "output")
            if not is_only_neginf(summary)
            or not (
                (masked_inputs and hands_on_masks(call.module, tensor))
                or is_masked_output(tensor, call.module, call.masked_inside)
            )
        ]

    def _look_for_producer(
        self, call: Call, outer: list[Call], bad: TensorSummary, output: object
    ) -> None:
        pending = list(self._rules)
        chain = [call, *reversed(outer)]
        for depth, producer in enumerate(chain):
            pending = [rule for rule in pending if not _is_explained(rule, producer)]
            if not pending:
                return
            # Beside a fault that is known already, a -inf of unknown intent is its consequence.
            known = depth + 1 < len(chain) and bool(chain[depth + 1].explained)
            if next(bad_arguments(producer, known), None) is not None:
                continue
            entered = chain[max(depth - 1, 0)]
            parameter = bad_parameter(producer.module)
            if parameter is not None:
                self._report_parameter(pending, producer, chain[depth:], entered, parameter)
            else:
                self._report_output(pending, producer, chain[depth:], entered, bad, output)
            return

    def _report_output(
        self,
        rules: list[Rule],
        producer: Call,
        around: list[Call],
        entered: Call,
        summary: TensorSummary,
        output: object,
    ) -> None:
        path = self._names.path(producer.module, around[-1].module)
        inline = entered is not producer
        values: dict[str, Any] = {
            "inputs": producer.args,
            "keyword_inputs": keywords_of(producer),
        }
        if inline:  # the value itself is what the child received, not what it made of it
            summary = next(bad_arguments(entered, known_fault=True), summary)
            values["received_by"] = entered.module
            values["received"] = entered.args
        else:
            values["output"] = output
        where = (
            explain.inline(producer.module, path, self._names.path(entered.module, producer.module))
            if inline
            else explain.fresh(producer.module, path)
        )
        event = Event(
            name="nonfinite.forward",
            module=producer.module,
            entered=entered.module,
            headline=explain.headline(summary, "made inside" if inline else "in the output of"),
            sentences=(
                explain.describe(summary),
                where,
                *explain.unhooked_children(producer.module),
                *explain.compiled_region(producer.module),
            ),
            value=summary.nan + summary.posinf + summary.neginf,
            tensor=summary,
            values=values,
            suspect=ForwardSuspect(
                value=(entered.args, keywords_of(entered)) if inline else output,
                call=producer,
                outer=tuple(around[:0:-1]),
                receiver=entered.module if inline else None,
            ),
        )
        self._tell(rules, producer, around, "forward", "forward", event)

    def _report_parameter(
        self,
        rules: list[Rule],
        consumer: Call,
        around: list[Call],
        entered: Call,
        found: tuple[Module, str, TensorSummary],
    ) -> None:
        owner, kind, summary = found
        path = self._names.path(owner, around[-1].module)
        event = Event(
            name="nonfinite.input",
            module=owner,
            entered=consumer.module if entered is consumer else entered.module,
            headline=explain.headline(summary, f"in {kind} {summary.name} of"),
            sentences=(explain.describe(summary), explain.spoilt_parameter(kind, path)),
            value=summary.nan + summary.posinf + summary.neginf,
            tensor=summary,
            values={"inputs": consumer.args, "keyword_inputs": keywords_of(consumer)},
        )
        self._tell(rules, consumer, around, STATE, "input", event, owner)

    # The loss ----------------------------------------------------------------------------------

    def on_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """Look at what backward starts from: a loss is often computed outside of any module."""
        bad = next(
            (
                found
                for root in roots
                if isinstance(root, sys.modules["torch"].Tensor)
                for found in nonfinite_in(root, "loss")
            ),
            None,
        )
        if bad is None or getattr(self._thread, "spoilt", False):
            for rule in self._rules:
                rule.true_at.discard(_LOSS)
            return
        loss, summary = bad
        event = Event(
            name="nonfinite.forward",
            module=None,
            entered=None,
            headline=explain.headline(summary, "in the loss"),
            sentences=(explain.describe(summary), explain.LOSS),
            value=summary.nan + summary.posinf + summary.neginf,
            tensor=summary,
            values={"loss": loss},
            suspect=LossSuspect(loss, explain.NO_FORWARD),
        )
        looking = [rule for rule in self._rules if rule.looks_at("")]
        self._judge.measured(
            "nonfinite", True, looking, lambda: event, part=_LOSS[1], option="forward"
        )

    # Rules -------------------------------------------------------------------------------------

    def _tell(
        self,
        rules: Sequence[Rule],
        call: Call,
        around: list[Call],
        part: str,
        phase: str,
        event: Event,
        owner: Module | None = None,
    ) -> None:
        """Tell the rules about `event`, and stop for those that turn true with it.

        A rule that looks at this module (`owner`, else the call's) has its explanation: the calls
        around it, whose outputs carry the same value, are no news to it. One that looks only at a
        module further out is asked again when that one returns.
        """
        module = call.module if owner is None else owner
        path = self._names.path(module, around[-1].module)
        looking = [rule for rule in rules if rule.looks_at(path)]
        for rule in rules:
            for explained in around if rule in looking else [call]:
                _explain(rule, explained)
        self._judge.measured(
            "nonfinite", True, looking, lambda: event, module=module, part=part, option=phase
        )

    def _rearm(self, rule: Rule, call: Call) -> None:
        if _is_explained(rule, call):
            return
        rule.true_at.discard((id(call.module), "forward"))
        place = (id(call.module), STATE)
        if place in rule.true_at and not any(map(has_nonfinite, own_state(call.module))):
            rule.true_at.discard(place)

    def _observe_finite(self, rule: Rule, call: Call) -> None:
        path = self._names.path(call.module, call.module)
        if _is_explained(rule, call) or not rule.looks_at(path):
            return

        def event() -> Event:
            return Event(
                name="nonfinite.forward",
                module=call.module,
                entered=call.module,
                headline="the condition turned true at",
                sentences=(f"nonfinite is false here; the condition is {rule.tensorpoint.text}.",),
                value=0,
                values={"inputs": call.args, "keyword_inputs": call.kwargs},
            )

        self._judge.measured(
            "nonfinite", False, [rule], event, module=call.module, part="forward", option="forward"
        )


def _is_explained(rule: Rule, call: Call) -> bool:
    return call.explained is not None and rule.id in call.explained


def _explain(rule: Rule, call: Call) -> None:
    if call.explained is None:
        call.explained = set()
    call.explained.add(rule.id)
