"""Layer breakpoints: stop where a module is entered, has returned, or is met in backward.

They go by path or class, with globs. What a breakpoint names may not exist yet: models are made
while the program runs. So each time that modules of a root become known, it is looked up, and the
adapter is told whether there is such a layer, and if not, which names come near.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..conditions import Input, Sample
from ..conditions.hits import parse_hits
from ..conditions.layer import Phase, holds
from . import debugger, explain
from .modules import Call, Names, class_of, keywords_of
from .near import no_layer
from .quiet import is_quiet
from .rules import Rule
from .stepping.scopes import globals_of, inputs_of
from .tensors import tensors_in
from .watches.base import Event, Stop

if TYPE_CHECKING:
    from torch.nn import Module

#: Tells the adapter of (rule id, "" or why there is no such layer).
Tell = Callable[[list[tuple[int, str]]], None]


class LayerBreakpoints:
    """The armed `layer:` tensorpoints."""

    def __init__(
        self, names: Names, stop: Stop, tell: Tell, report: Callable[[str, Exception], None]
    ) -> None:
        self._names = names
        self._stop = stop
        self._tell = tell
        self._report = report
        self._rules: dict[Phase, tuple[Rule, ...]] = {}
        #: Rules whose condition has failed.
        self._failed: set[int] = set()
        self._counts: dict[int, int] = {}
        #: What the adapter was told last, and of which modules.
        self._told: dict[int, str] = {}
        self._seen = -1
        self._lock = threading.Lock()

    def arm(self, rules: Sequence[Rule]) -> None:
        """Stop for exactly these from now on."""
        by_phase: dict[Phase, tuple[Rule, ...]] = {}
        for rule in rules:
            phase = rule.tensorpoint.phase
            by_phase[phase] = (*by_phase.get(phase, ()), rule)
        self._rules = by_phase
        ids = {rule.id for rule in rules}
        self._failed &= ids
        self._counts = {id: count for id, count in self._counts.items() if id in ids}
        self._look_up()

    @property
    def hears_entries(self) -> bool:
        """Whether it has to hear of the entries of modules: then it also hears of new models."""
        return bool(self._rules)

    @property
    def hears_exits(self) -> bool:
        """Whether it has to hear of their exits."""
        return "exit" in self._rules or "backward" in self._rules

    def on_enter(self, call: Call, outer: list[Call]) -> None:
        """A module is about to run its forward."""
        if self._names.version != self._seen:
            self._look_up()
        matching = self._matching("forward", call, outer)
        if not matching:
            return
        inputs = inputs_of(call.module, call.args, keywords_of(call))
        fired = [rule for rule in matching if self._holds(rule, call.module, {"inputs": inputs})]
        if fired:
            path = self._path(call, outer)
            event = Event(
                name="layer.entry",
                module=call.module,
                entered=call.module,
                headline="layer",
                sentences=(f"{explain.place(call.module, path)} is about to run its forward.",),
                values={"inputs": call.args, "keyword_inputs": keywords_of(call)},
            )
            self._stop(fired, event)

    def on_leave(self, call: Call, outer: list[Call], output: Any) -> None:
        """It has returned."""
        if matching := self._matching("backward", call, outer):
            self._follow(matching, call.module, output)
        matching = self._matching("exit", call, outer)
        if not matching:
            return
        inputs = inputs_of(call.module, call.args, call.kwargs)
        seen = {"inputs": inputs, "output": output}
        fired = [rule for rule in matching if self._holds(rule, call.module, seen)]
        if fired:
            path = self._path(call, outer)
            event = Event(
                name="layer.exit",
                module=call.module,
                entered=call.module,
                headline="exit of layer",
                sentences=(f"{explain.place(call.module, path)} has returned.",),
                values={
                    "inputs": call.args,
                    "keyword_inputs": dict(call.kwargs),
                    "output": output,
                },
            )
            self._stop(fired, event)

    # Backward -------------------------------------------------------------------------------------

    def _follow(self, rules: list[Rule], module: Module, output: Any) -> None:
        """Hear of the gradient of this output: a hook on the node that made it."""
        if sys.modules["torch"]._C._functorch.maybe_current_level() is not None:
            return
        tensor: Any = next(
            (item for _, item in tensors_in(output, "") if item.grad_fn is not None), None
        )
        if tensor is None:
            return
        number, owner = tensor.output_nr, weakref.ref(module)

        def came(gradients: tuple[Any, ...]) -> None:
            gradient = gradients[number] if number < len(gradients) else None
            alive = owner()
            armed = [rule for rule in rules if rule in self._rules.get("backward", ())]
            if gradient is None or alive is None or not armed:
                return
            if is_quiet() or debugger.evaluating():
                return
            self._in_backward(armed, alive, gradient)

        tensor.grad_fn.register_prehook(came)

    def _in_backward(self, rules: list[Rule], module: Module, gradient: Any) -> None:
        seen = {"grad_output": gradient}
        fired = [rule for rule in rules if self._holds(rule, module, seen)]
        if fired:
            path = self._names.path(module, module)
            event = Event(
                name="layer.backward",
                module=module,
                entered=None,
                headline="backward of layer",
                sentences=(f"Backward has come to {explain.place(module, path)}.",),
                values=seen,
            )
            self._stop(fired, event)

    # Rules ----------------------------------------------------------------------------------------

    def _path(self, call: Call, outer: list[Call]) -> str:
        return self._names.path(call.module, outer[0].module if outer else call.module)

    def _matching(self, phase: Phase, call: Call, outer: list[Call]) -> list[Rule]:
        rules = self._rules.get(phase)
        if not rules:
            return []
        path, kind = self._path(call, outer), class_of(call.module)
        return [rule for rule in rules if rule.is_about(path, kind)]

    def _holds(self, rule: Rule, module: Module, seen: dict[str, Any]) -> bool:
        """Whether it is to stop here; counts the times that it would."""
        if rule.id in self._failed:
            return False
        try:
            if not self._is_true(rule, module, seen):
                return False
        except Exception as error:
            self._failed.add(rule.id)
            self._report(f"looking at {rule.tensorpoint.text}", error)
            return False
        with self._lock:
            count = self._counts[rule.id] = self._counts.get(rule.id, 0) + 1
        return parse_hits(rule.tensorpoint.hits)(count)

    def _is_true(self, rule: Rule, module: Module, seen: dict[str, Any]) -> bool:
        def lookup(wanted: Input) -> Sample | None:
            return self._names.counter(str(wanted), module)

        if rule.expression is None:
            return rule.holds(lookup) is True
        counters = {
            "step": self._names.step(module),
            "optimizer_step": self._names.optimizer_step(),
        }
        return holds(rule.expression, globals_of(module), {"self": module, **seen, **counters})

    # What there is --------------------------------------------------------------------------------

    def _look_up(self) -> None:
        """Tell the adapter which of the layers there are, as far as that is news."""
        self._seen = self._names.version
        known = self._names.all()
        if not known:
            return
        called = self._names.called()
        told: list[tuple[int, str]] = []
        for rule in (rule for rules in self._rules.values() for rule in rules):
            unknown = why_no_layer(rule, known, called)
            if self._told.get(rule.id) != unknown:
                self._told[rule.id] = unknown
                told.append((rule.id, unknown))
        if told:
            self._tell(told)


def why_no_layer(
    rule: Rule, known: Sequence[tuple[str, str]], called: Sequence[tuple[str, str]]
) -> str:
    """Why a layer breakpoint stops nowhere in what is known, or is called; "" if it does."""
    if any(rule.is_about(*item) for item in called):
        return ""
    pattern = rule.tensorpoint.module
    if not any(rule.is_about(*item) for item in known):
        return no_layer(pattern, known)
    return (
        f"{pattern} names what runs inside of a compiled layer (torch.compile), where layers are "
        "not called one by one; name the compiled layer, or run without compile"
    )
