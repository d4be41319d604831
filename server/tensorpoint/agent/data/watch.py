"""Compares what is watched at boundaries, and stops where a condition turns true.

What a boundary costs: for each target a look-up and a comparison of identity, version, shape and
dtype, 14 us. What torch's version counter does not see (`.data`, a kernel of the program's own,
numpy) is found by a sum over the bits, taken where a root returns and around backward passes and
optimizer steps, on the CPU.

The version counter goes up *after* an operation has passed a dispatch mode. So with precision "op"
a write is told by the memory that an operation writes into, and the boundary after it knows that
this write is no news.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from ...conditions.data import DataCondition, parse_data
from ...conditions.hits import parse_hits
from ...wire import Tensorpoint
from .. import debugger, explain
from ..frames import short_file
from ..modules import Call, Names
from ..ops.dispatch import Arguments, storage_of, tensors_of
from ..ops.operation import Line
from ..ops.stack import lines_at
from ..rules import Rule
from ..tensors import absmax_of, has_nonfinite, norm_of, unseen
from ..values.owners import Owners
from ..values.plain import (
    call,
    is_hollow,
    is_lazy,
    is_on_cpu,
    is_tensor,
    number,
    plain,
    read,
)
from ..watches.base import Event, Stop, Watch
from .lookup import NotWatchable, of_expression
from .targets import Look, Target, Targets, look_at

if TYPE_CHECKING:
    from torch.nn import Module


@dataclass
class _Watched:
    """One armed data breakpoint and what it saw last."""

    rule: Rule
    target: Target
    condition: DataCondition
    hits_fire: Callable[[int], bool]
    look: Look
    hits: int = 0
    #: Whether the condition was true at the last look.
    holds: bool = False
    #: Whether anything was looked at yet: what is true from the beginning is no news.
    is_known: bool = False
    #: Writes by operations that were told, which the version counter has still to show.
    told: int = 0
    #: The norm when it was looked at last, for the text.
    norm: float | None = None
    #: The gradient when an optimizer stepped last, and its version.
    stepped: tuple[weakref.ref[Any], int | None] | None = None
    #: Whether a backward pass has added to the gradient since.
    was_given: bool = False
    #: What the gradient was then in place of one of that step.
    missing: str | None = None
    said_gone: bool = False


class _Places(threading.local):
    """What happened last on this thread, in words, and when it was looked at closely."""

    newest: str | None = None
    closely: str | None = None


class DataWatch(Watch):
    """The armed data breakpoints. A listener of all sources."""

    metric: ClassVar[str] = "data"

    def __init__(
        self, names: Names, stop: Stop, targets: Targets, tell: Callable[[str], None]
    ) -> None:
        self._names, self._stop, self._targets, self._tell = names, stop, targets, tell
        self._watched: tuple[_Watched, ...] = ()
        #: Those whose path no model has had so far, and the roots that were looked through.
        self._waiting: list[Rule] = []
        #: Those whose target was gone when they came.
        self._gone: set[Tensorpoint] = set()
        self._searched: weakref.WeakSet[Module] = weakref.WeakSet()
        #: Held while the three change: models are called on any thread, plans come on another.
        self._changing = threading.Lock()
        self._places = _Places()

    def arm(self, rules: Sequence[Rule]) -> None:
        """Watch for exactly these; one that stays keeps what it has seen."""
        with self._changing:
            self._arm(rules)

    def after_fork(self) -> None:
        """The thread that held the lock may not be in the child."""
        self._changing = threading.Lock()

    def _arm(self, rules: Sequence[Rule]) -> None:
        known = {watched.rule.tensorpoint: watched for watched in self._watched}
        armed: list[_Watched] = []
        self._waiting = []
        self._searched.clear()
        for rule in rules:
            tensorpoint = rule.tensorpoint
            before = known.get(tensorpoint)
            target = self._targets.find(tensorpoint.data)
            if before is not None and (before.target is target or not tensorpoint.data):
                armed.append(before)
            elif target is not None:
                armed.append(self._watch(rule, target))
            elif not tensorpoint.data:
                self._waiting.append(rule)
            elif tensorpoint not in self._gone:
                self._gone.add(tensorpoint)
                self._tell(f"{tensorpoint.module} is gone: its data breakpoint is off")
        self._watched = tuple(armed)

    def _watch(self, rule: Rule, target: Target) -> _Watched:
        tensorpoint = rule.tensorpoint
        watched = _Watched(
            rule,
            target,
            parse_data(tensorpoint.condition),
            parse_hits(tensorpoint.hits),
            look_at(target, closely=True),
        )
        if _can_be_read_here(target):  # what is true from the beginning is no news
            self._judge(watched, watched.look, watched.look, "", None)
        return watched

    def _find(self, root: Module) -> None:
        """Watch what waits for its path, if this model has it."""
        if root in self._searched:
            return
        self._searched.add(root)
        owners = Owners(lambda: [root])
        for rule in self._waiting[:]:
            try:
                target = of_expression(rule.tensorpoint.module, None, owners)
            except NotWatchable:
                continue
            self._waiting.remove(rule)
            self._watched = (*self._watched, self._watch(rule, target))

    # Boundaries ----------------------------------------------------------------------------------

    def on_root(self, call: Call) -> None:
        """A root is about to run: look closely."""
        if self._waiting:
            with self._changing:
                self._find(call.module)
        self._look(f"the call of {self._place(call, [])}", call.module, closely=True)

    def on_enter(self, call: Call, outer: list[Call]) -> None:
        """A module is about to run."""
        self._look(f"the call of {self._place(call, outer)}", call.module)

    def on_exit(self, call: Call, outer: list[Call], output: Any) -> None:
        """A module returned."""
        self._look(f"the end of {self._place(call, outer)}", call.module)

    def on_root_exit(self, call: Call, output: Any) -> None:
        """A root returned: look closely."""
        self._look(f"the end of {self._place(call, [])}", call.module, closely=True)

    def on_backward(self, roots: object) -> None:
        """A backward pass begins."""
        self._look("the beginning of backward", None, closely=True)

    def on_parameter_gradient(
        self, owner: Module | None, name: str, parameter: Any, norm: float | None
    ) -> None:
        """A gradient was accumulated."""
        full = name
        if owner is not None:
            path = self._names.path(owner, owner)
            full = f"{path}.{name}" if path else name
        self._look(f"the gradient of {full} in backward", None)
        for watched in self._watched:
            watched.was_given |= _parameter_of(watched.target) is parameter

    def on_backward_end(self, results: object) -> None:
        """A backward pass has ended."""
        self._look("the end of backward", None, closely=True)

    def on_before_update(self, optimizer: Any) -> None:
        """An optimizer is about to step: does each have a gradient of this step?"""
        self._look(f"the beginning of {type(optimizer).__name__}.step", None, closely=True)
        for watched in self._watched:
            if "no_grad" in watched.condition.words:
                self._look_for_gradient(watched, optimizer)

    def on_after_update(self, optimizer: Any) -> None:
        """An optimizer has stepped."""
        self._look(f"the end of {type(optimizer).__name__}.step", None, closely=True)

    def on_operation(self, func: Any, arguments: Arguments) -> None:
        """With precision "op": an operation has written into its arguments."""
        written = {
            storage_of(tensor)
            for name in arguments.written
            for tensor in tensors_of(arguments.by_name[name])
        }
        for watched in self._watched:
            tensor = watched.target.tensor()
            if tensor is None or storage_of(tensor) not in written:
                continue
            watched.told += 1
            where = _by_operation(str(func), lines_at(sys._getframe(1)))
            self._judge(watched, watched.look, _now(watched), where, None)

    # Looking -------------------------------------------------------------------------------------

    def _look(self, here: str, entered: Module | None, *, closely: bool = False) -> None:
        if debugger.evaluating():  # what the user does in the console is no news
            for watched in self._watched:
                watched.look = look_at(watched.target, closely=True)
            return
        before, looked = self._places.newest, self._places.closely
        self._places.newest = here
        if closely:
            self._places.closely = here
        for watched in self._watched:
            if watched.target.is_gone:
                self._say_gone(watched)
                continue
            now, then = look_at(watched.target, closely=closely), watched.look
            told, watched.told = watched.told, 0
            same = _same(then, now, told)
            if same and not told and not closely:
                now = replace(now, fingerprint=then.fingerprint)
            watched.look = now
            if not same or not watched.is_known:
                unseen = then.version == now.version and then.identity is now.identity
                place = _between(looked if unseen else before, here)
                self._judge(watched, then, now, place, entered)

    def _judge(
        self, watched: _Watched, then: Look, now: Look, where: str, entered: Module | None
    ) -> None:
        """Look at the condition after a change, and stop if it turned true."""
        first, watched.is_known = not watched.is_known, True
        has_changed = not _same(then, now, 0)
        holds = self._holds(watched, then, now)
        turned = holds and ("changed" in watched.condition.words or not watched.holds)
        watched.holds = holds
        if not turned or (first and not has_changed):
            return
        watched.hits += 1
        if not watched.hits_fire(watched.hits):
            return
        self._fire(watched, then, now, where, entered)

    def _holds(self, watched: _Watched, then: Look, now: Look) -> bool:
        value = watched.target.tensor()

        def read_word(word: str) -> float | bool | None:
            if word == "changed":
                return not _same(then, now, 0)
            if word == "reshaped":
                return (then.shape, then.dtype) != (now.shape, now.dtype)
            if word == "no_grad":
                return watched.missing is not None and not watched.was_given
            return self._measured(word, value)

        return watched.condition.holds(read_word) is True

    def _measured(self, word: str, value: Any) -> float | bool | None:
        if word == "step":
            return self._names.newest_step()
        if word == "optimizer_step":
            return self._names.optimizer_step()
        if value is None:
            return False if word == "nonfinite" else None
        if word == "nonfinite":
            return has_nonfinite(value)
        numbers = _numbers(value)
        return norm_of(numbers) if word == "norm" else absmax_of(numbers)

    def _look_for_gradient(self, watched: _Watched, optimizer: Any) -> None:
        target = watched.target
        parameter = _parameter_of(target)
        if not is_tensor(parameter) or not read(parameter, "requires_grad"):
            return
        watched.missing = _why_missing(watched, read(parameter, "grad"))
        holds = self._holds(watched, watched.look, watched.look)
        turned, watched.holds = holds and not watched.holds, holds
        if turned:
            watched.hits += 1
            if watched.hits_fire(watched.hits):
                name = type(optimizer).__name__
                self._stop_for(
                    watched,
                    f"no gradient for {target.name.removesuffix('.grad')}",
                    (f"{name}.step is about to run, and its gradient is {watched.missing}.",),
                    None,
                )

    # Telling -------------------------------------------------------------------------------------

    def _fire(
        self, watched: _Watched, then: Look, now: Look, where: str, entered: Module | None
    ) -> None:
        value = watched.target.tensor()
        sentences = [f"It was changed {where}."]
        difference = _difference(then, now, watched.target)
        if difference:
            sentences.append(difference)
        norm = None if value is None else norm_of(_numbers(value))
        if norm is not None:
            before = "" if watched.norm is None else f", {number(watched.norm)} when last seen"
            sentences.append(f"‖{watched.target.name}‖ is {number(norm)}{before}.")
        watched.norm = norm
        word = "change" if "changed" in watched.condition.words else watched.condition.text
        headline = (
            f"{word} of {watched.target.name}"
            if word == "change"
            else (f"{word} for {watched.target.name}")
        )
        if watched.hits > 1:
            sentences.append(f"Hit {watched.hits}.")
        self._stop_for(watched, headline, tuple(sentences), entered)

    def _stop_for(
        self,
        watched: _Watched,
        headline: str,
        sentences: tuple[str, ...],
        entered: Module | None,
    ) -> None:
        event = Event(
            name="data",
            module=None,
            entered=entered,
            headline=headline,
            sentences=sentences,
            values={watched.target.name: watched.target.tensor()},
        )
        self._stop([watched.rule], event)

    def _say_gone(self, watched: _Watched) -> None:
        if not watched.said_gone:
            watched.said_gone = True
            self._tell(f"{watched.target.name} is gone: its data breakpoint is off")

    def _place(self, call: Call, outer: list[Call]) -> str:
        within = outer[0].module if outer else call.module
        return explain.place(call.module, self._names.path(call.module, within))


@unseen
def _numbers(tensor: Any) -> Any:
    """With a norm and a largest magnitude also of counters and masks."""
    if is_lazy(tensor) or is_hollow(tensor) or read(tensor, "is_nested"):
        return tensor
    if read(tensor, "layout") is not sys.modules["torch"].strided or read(tensor, "is_quantized"):
        return tensor
    kind = read(tensor, "dtype")
    return tensor if kind.is_floating_point or kind.is_complex else plain(tensor).double()


def _by_operation(name: str, lines: Sequence[Line]) -> str:
    if not lines:
        return f"by {name}"
    line = lines[0]
    return f"by {name} at {short_file(line.file)}:{line.line} in {line.function}"


def _parameter_of(target: Target) -> Any:
    return target.owner if target.kind == "gradient" else target.tensor()


def _why_missing(watched: _Watched, gradient: Any) -> str | None:
    """What the gradient is in place of one of this step, or None if there is such a one.

    Beside backward passes the program may write it by itself, as it may set it to zero.
    """
    given, watched.was_given = watched.was_given, False
    if gradient is None:
        watched.stepped = None
        return "None"
    version = None if call(gradient, "is_inference") else read(gradient, "_version")
    before, watched.stepped = watched.stepped, (weakref.ref(gradient), version)
    if given or before is None or before[0]() is not gradient:
        return None
    if version == before[1]:
        return "that of an earlier step"
    return (
        "0: it was set to zero, and nothing was added since" if absmax_of(gradient) == 0 else None
    )


def _can_be_read_here(target: Target) -> bool:
    """On pydevd's thread, where the plan comes: nothing that waits for a device."""
    tensor = target.tensor()
    return tensor is None or is_on_cpu(tensor)


def _now(watched: _Watched) -> Look:
    """After an operation has written: another version than before, whatever the counter says."""
    now = look_at(watched.target, closely=False)
    version = None if now.version is None else now.version + watched.told
    return replace(now, version=version)


def _same(then: Look, now: Look, told: int) -> bool:
    if then.identity is not now.identity or (then.shape, then.dtype) != (now.shape, now.dtype):
        return False
    if then.version is not None and now.version is not None and then.version != now.version:
        return 0 < now.version - then.version <= told
    if then.fingerprint is not None and now.fingerprint is not None and not told:
        return then.fingerprint == now.fingerprint
    return True


def _between(before: str | None, here: str) -> str:
    if here.endswith(".step") and before is not None and before.endswith(".step"):
        name = here.removeprefix("the end of ")
        if before == f"the beginning of {name}" and here.startswith("the end of "):
            return f"by {name}"
    if here.startswith("the gradient of "):
        return f"by backward, up to {here.removesuffix(' in backward')}"
    return f"before {here}" if before is None else f"between {before} and {here}"


def _difference(then: Look, now: Look, target: Target) -> str:
    if now.identity is None:
        return "It is None now." if then.identity is not None else ""
    if then.identity is None:
        return "It was None before."
    if then.identity is not now.identity:
        return "It is another tensor now, not written in place."
    if (then.shape, then.dtype) != (now.shape, now.dtype):
        if then.shape is None:
            return "It had no shape before."
        return f"It was {then.dtype}{list(then.shape)} before."
    if (
        then.version is not None
        and then.version == now.version
        and then.fingerprint != now.fingerprint
    ):
        return (
            "torch's version counter has not moved: it was written past autograd, through .data, "
            "by numpy or by a kernel of its own."
        )
    if then.version is not None and now.version is not None:
        times = now.version - then.version
        return f"Written in place {'once' if times == 1 else f'{times} times'}."
    return ""
