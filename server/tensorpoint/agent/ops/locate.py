"""From a watch's suspicion to the operation, in the words of a stop."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from ...wire import Operand, OperationReport, PassedBy, Precision
from .. import explain
from ..debugger_files import client_file
from ..modules import Names
from ..tensors import unseen, values_of
from .brought import brought_in, entrance, in_words
from .cause import Cause
from .made import Made
from .operation import Line, Operation
from .precise import Precise
from .recorder import Failed, NotReplayable
from .replay import Found, Replayer
from .state import Entries
from .suspect import BackwardSuspect, LossSuspect, Suspect
from .unrecorded import producer

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

#: Operations that are listed on the way from the producer.
#: So many tensors of one list.
_MAX_LISTED = 8
_MAX_WAY = 12


@dataclass
class Located:
    """What is known of the operation, and how to stop at it."""

    report: OperationReport | None
    sentences: tuple[str, ...]
    #: Live objects for the "Tensor event" scope.
    values: dict[str, Any]
    #: The module that ran it, where that was called by `.forward()`, so that no watch knows of it.
    module: Module | None = None
    #: Calls back with the frame of its line; False if it could not.
    live: Callable[[Callable[[FrameType], None]], bool] | None = None


class Locator:
    """Finds the operation that made a bad value, if its forward can be run again."""

    def __init__(
        self,
        names: Names,
        hooks_aside: Callable[[], AbstractContextManager[None]],
        is_risky: Callable[[Any], bool],
        scale_of: Callable[[torch.Tensor | None], float | None],
        on_fault: Callable[[Any, Exception], None],
        after_write: Callable[[Any, Any], None] | None = None,
        clips_bad_gradient: Callable[[], bool] = lambda: False,
    ) -> None:
        self._names = names
        self._entries = Entries()
        self._precise = Precise(is_risky, clips_bad_gradient, self._describe, on_fault, after_write)
        self._replayer = Replayer(self._entries, hooks_aside, self._describe)
        self._scale_of = scale_of
        self._on_fault = on_fault
        #: False after a fault of ours: nothing is looked for then.
        self._is_on = True

    def arm(self, precision: Precision) -> None:
        """Record all operations with precision "op"; else only run again what is asked for."""
        self._precise.switch(precision == "op" and self._is_on)

    @property
    def entries(self) -> Entries:
        """How the newest calls of roots began, while that is listened to."""
        return self._entries

    def listeners(self) -> tuple[Any, ...]:
        """Those who have to hear of what the program does, after all watches."""
        return (self._entries, self._precise) if self._can_look() else ()

    def follow_losses(self, wanted: bool) -> None:
        """Record what is computed of models' outputs, for the backward pass that is listened to."""
        self._precise.follow_losses(wanted)

    def entries_alone(self) -> tuple[Any, ...]:
        """The same where nothing is looked for, but a forward may be asked to be run again."""
        return (self._entries,) if self._can_look() else ()

    def _can_look(self) -> bool:
        # A torch without modes in Python has nothing that operations could be seen with.
        return self._is_on and "torch.utils._python_dispatch" in sys.modules

    def after_fork(self) -> None:
        """Look for nothing until a plan comes, and wait for no thread of the parent's."""
        self._replayer.after_fork()
        self._entries.forget()
        self._precise.after_fork()
        self.arm("module")

    def give_up(self) -> None:
        """Something of ours failed: look for nothing from now on."""
        self._precise.switch(False)
        self._entries.forget()
        self._is_on = False

    def made_by(self, tensor: Any) -> tuple[str, Line] | None:
        """With precision "op": the operation that made a tensor, on this thread, and its line."""
        recorder = self._precise.recorder()
        return None if recorder is None else recorder.made_by(tensor)

    def failed(self, error: BaseException) -> Failed | None:
        """The sampling that raised `error`, where operations are recorded on this thread."""
        recorder = self._precise.recorder()
        failed = None if recorder is None else recorder.failed
        return failed if failed is not None and failed.error == id(error) else None

    def locate(self, suspect: Suspect | None) -> Located | None:
        """What made the value; None if nothing is to be looked for. Never raises."""
        if suspect is None or not self._can_look():
            return None
        try:
            return self._told(self._found(suspect))
        except NotReplayable as reason:
            brought = self._brought(suspect)
            self._precise.switch(True)
            return brought or Located(None, (explain.not_located(str(reason)),), {})
        except Exception as error:
            self._on_fault(self, error)
            return None

    def _found(self, suspect: Suspect) -> Found:
        recorded = self._recorded(suspect)
        if recorded is not None and (recorded.made.lines or not recorded.made.in_backward):
            return recorded
        if isinstance(suspect, BackwardSuspect):
            found = recorded or self._after_model(suspect)
            if found is not None and not self._replayer.got_good_gradient():
                return found
            try:
                return self._replayer.find(suspect)
            except NotReplayable:
                if found is None:
                    raise
                return found
        if isinstance(suspect, LossSuspect):
            made = producer(suspect.value, self._describe)
            if made is not None:
                return Found(made, [made])
        return self._replayer.find(suspect)

    def _recorded(self, suspect: Suspect) -> Found | None:
        """The operation, where it was recorded when the program ran it."""
        recorder = self._precise.recorder()
        made = None if recorder is None else recorder.bad_in(suspect.value)
        if made is None:
            return None
        way = made.likely_way()
        if way[0].operation is None or way[0].is_from_outside:
            return None
        if isinstance(suspect, LossSuspect) and entrance(made) is not None:
            return None
        return Found(way[0], way)

    def _brought(self, suspect: Suspect) -> Located | None:
        """What is known of a value that was there before anything was recorded."""
        recorder = self._precise.recorder() if isinstance(suspect, LossSuspect) else None
        made = None if recorder is None else recorder.bad_in(suspect.value)
        first = None if made is None else entrance(made)
        if first is None:
            return None
        name, tensor = brought_in(first)
        operand = _in_words(_operand(name, tensor))
        sentences = in_words(first, name, tensor), operand, explain.FROM_NOW_ON
        return Located(None, sentences, {name: tensor})

    def _after_model(self, suspect: BackwardSuspect) -> Found | None:
        """The operation, where a node outside of the models made the gradient."""
        found = self._precise.producer(suspect.parameter)
        if found is None:
            return None
        node, call = found.behind, found.call
        root = None if call is None else call.root()
        if node is not None and call is not None and root is not None:
            from ..causes.names import is_of  # only now, as in `_describe`

            try:
                forward = self._replayer.operation_of(root, call.first, node)
            except NotReplayable:
                forward = None  # the operation is known, but no line of the forward
            if forward is not None and is_of(node.name, forward.name):
                found = found.at(forward)
        return Found(found.made, [found.made])

    def _told(self, found: Found) -> Located:
        operation = found.made.operation
        assert operation is not None
        cause = found.made.cause
        line = operation.lines[0] if operation.lines else None
        forward = (
            operation.forward.lines[0] if operation.forward and operation.forward.lines else None
        )
        report = OperationReport(
            name=operation.full_name,
            file=client_file(line.file) if line else None,
            line=line.line if line else None,
            function=line.function if line else None,
            operands=found.made.operands,
            cause=cause.cause if cause else None,
            cure=cause.cure if cause else None,
            node=operation.node,
            forward_op=operation.forward.full_name if operation.forward else None,
            forward_file=client_file(forward.file) if forward else None,
            forward_line=forward.line if forward else None,
            way=self._way(found.way),
        )
        return Located(
            report,
            _sentences(report, found),
            {name: item for name, item in operation.arguments.items() if item is not None},
            found.made.module if found.made.is_unhooked else None,
            found.live,
        )

    def _describe(self, operation: Operation) -> tuple[Cause | None, tuple[Operand, ...]]:
        # Only now: the rules are 2,000 lines, which a program without a NaN never needs.
        from .. import causes

        try:
            cause = causes.explain(operation, operation.names, self._scale_of(None))
            return cause, operands_told(operation)
        except Exception as error:
            self._on_fault(self, error)
            return None, ()

    def _way(self, way: list[Made]) -> tuple[PassedBy, ...]:
        shown = way if len(way) <= _MAX_WAY else [*way[: _MAX_WAY - 1], way[-1]]
        return tuple(
            PassedBy(
                op=made.full_name,
                module="" if made.module is None else self._names.path(made.module, made.module),
                file=client_file(made.lines[0].file) if made.lines else None,
                line=made.lines[0].line if made.lines else None,
            )
            for made in shown
        )


def _sentences(report: OperationReport, found: Found) -> tuple[str, ...]:
    sentences: list[str] = []
    if report.file is None and report.forward_file is None:
        sentences.append(explain.NO_LINE)
    if report.cause is not None:
        sentences += [report.cause, report.cure or ""]
    sentences += [_in_words(operand) for operand in report.operands]
    if found.side_effects:
        sentences.append(
            "To find it the forward was run again, with what it does besides: "
            f"{', '.join(found.side_effects)}."
        )
    return tuple(sentences)


def _in_words(operand: Operand) -> str:
    text = f"{operand.name}: {operand.dtype} {list(operand.shape)} on {operand.device}"
    if operand.nonfinite:
        text += f", {operand.nonfinite} not finite"
    if operand.min is not None and operand.max is not None:
        text += f", {operand.min:.4g} to {operand.max:.4g}"
    return text


def operands_told(operation: Operation) -> tuple[Operand, ...]:
    """Of lists, as the parameters of an optimizer, the member that is meant; else the worst few."""
    torch = sys.modules["torch"]
    found: list[Operand] = []
    for name, argument in operation.arguments.items():
        called, meant = operation.names.get(name, name), operation.meant_of(argument)
        if meant is not argument and meant is not None:
            called += f"[{next(i for i, item in enumerate(argument) if item is meant)}]"
        values = meant if isinstance(meant, (list, tuple)) else (meant,)
        shown = [_operand(called, value) for value in values if isinstance(value, torch.Tensor)]
        if len(shown) > _MAX_LISTED:
            bad_first = sorted(range(len(shown)), key=lambda i: (not shown[i].nonfinite, i))
            shown = [shown[i] for i in sorted(bad_first[:_MAX_LISTED])]
        found += shown
    return tuple(found)


@unseen
def _operand(name: str, tensor: Any) -> Operand:
    torch = sys.modules["torch"]
    values = values_of(tensor)
    low = high = None
    nonfinite = 0
    if values is not None and values.numel():
        good = values[torch.isfinite(values)]
        nonfinite = values.numel() - good.numel()
        if good.numel():
            low, high = (float(limit) for limit in torch.aminmax(good))
    elif values is None and tensor.numel() and tensor.dtype in _whole_numbers(torch):
        low, high = (float(limit) for limit in torch.aminmax(tensor))
    return Operand(
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(int(size) for size in tensor.shape),
        device=str(tensor.device),
        min=low if low is None or math.isfinite(low) else None,
        max=high if high is None or math.isfinite(high) else None,
        nonfinite=nonfinite,
    )


def _whole_numbers(torch: Any) -> tuple[Any, ...]:
    return torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64
