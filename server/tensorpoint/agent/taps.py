"""Listens to functions for the adapters, and tells the watches what these make of the calls.

A tapped function is replaced where it is defined and wherever a module has it under a name of its
own, once the module that defines it has been imported, and for as long as its topic is listened to.
The replacement calls the original exactly once, with the arguments of the program; its result, its
exceptions, the random numbers and the graph of autograd are as without us. Whoever took hold of the
replacement meanwhile keeps a function that only passes on.

Compilers know the functions of torch by identity, so the replacement names its original to dynamo
(`_torchdynamo_inline`: traced code holds the original, no graph breaks, nothing is guarded), and to
the table of TorchScript. What compiled code computes is not seen.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from . import debugger
from .attention import Attention
from .hit import Hit
from .hooks import Hooks
from .imports import when_imported
from .likeness import attends, heads_of, is_part_of_attention
from .modules import Call, Names
from .points import Listening, Namespaces, Point
from .quiet import is_quiet
from .scaling import Scaling
from .told import is_number, scored, weighted
from .tracebacks import leave_out_ours
from .watches.base import hearing

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

#: What watches can hear of, and the topic that each belongs to.
_EVENTS = {
    "on_attention": "attention",
    "on_clipping": "gradients",
    "on_clipped": "gradients",
    "on_scale": "gradients",
}
#: In one call of a root: a decoder written as a loop has an attention a token.
_MAX_ORDINAL = 63

OnFault = Callable[[Any, Exception], None]


class Taps:
    """The taps of all adapters, and what these tell: a `tensorpoint_adapters.spec.Observer`."""

    def __init__(
        self,
        find: Callable[[], Sequence[Any]],
        names: Names,
        hooks: Hooks,
        on_fault: OnFault,
    ) -> None:
        #: Held by the thread that installs and removes.
        self._turn = threading.Lock()
        #: The topics to be listened to, None if they are; and modules that were imported since.
        self._wish: frozenset[str] | None = None
        self._arrived: list[str] = []
        self._find = find
        self._names = names
        self._hooks = hooks
        self._on_fault = on_fault
        self._adapters: Sequence[Any] | None = None
        self._topics: frozenset[str] = frozenset()
        #: Topics in which an adapter failed, for good.
        self._failed: set[str] = set()
        self._points: dict[str, Point] = {}
        self._namespaces = Namespaces()
        #: Settings that are not as they were: by which adapter, and what they were.
        self._switched: list[tuple[str, Any, Any]] = []
        self._awaited: set[str] = set()
        #: How many attentions each module has computed in a call of its root: (step, number).
        self._ordinals: WeakKeyDictionary[Module, tuple[int | None, int]] = WeakKeyDictionary()
        self._attends: WeakKeyDictionary[Module, bool] = WeakKeyDictionary()
        self._hearing: dict[str, tuple[Any, ...]] = dict.fromkeys(_EVENTS, ())
        self.scaling = Scaling()

    # Installing --------------------------------------------------------------------------------

    def listen(self, listeners: Iterable[Any], topics: Iterable[str] = ()) -> None:
        """Tell exactly these watches from now on; torch must be imported.

        `topics` are listened to besides those that a watch hears of: for `scaling`.
        """
        listeners = tuple(listeners)
        self._hearing = {event: hearing(listeners, event) for event in _EVENTS}
        heard = {topic for event, topic in _EVENTS.items() if self._hearing[event]}
        self._wish = frozenset(heard.union(topics))
        self._settle()

    def _settle(self) -> None:
        """Do what there is to do, unless a thread is at it: then that one does this as well.

        A fault on the way is reported, and may come back to `listen` with a new wish. And a thread
        that waited here while it imports could be what the other one waits for, with an adapter to
        load.
        """
        while (self._wish is not None or self._arrived) and self._turn.acquire(blocking=False):
            try:
                wish, self._wish = self._wish, None
                if wish is not None and wish - self._failed != self._topics:
                    self._change(wish)
                while self._arrived:
                    module = self._arrived.pop()
                    self._install([act for name, act in self._wanted() if name == module])
            finally:
                self._turn.release()

    def _change(self, topics: frozenset[str]) -> None:
        if self._adapters is None:
            self._adapters = ()
            self._adapters = self._find()
        self._remove()
        self._topics = topics - self._failed
        if "gradients" not in topics:
            self.scaling.forget()
        there: list[Callable[[], Point | None]] = []
        for module, act in self._wanted():
            if module in self._awaited or not _is_imported(module):
                self._await(module)
            else:
                there.append(act)
        self._install(there)

    def after_fork(self) -> None:
        """A forked child listens to nothing until it is told to."""
        self._turn = threading.Lock()
        for point in self._points.values():
            point.after_fork()
        self.remove()

    def remove(self) -> None:
        """Take everything out again."""
        self.listen(())

    def _remove(self) -> None:
        for point in self._points.values():
            point.remove()
        for adapter, switch, before in reversed(self._switched):
            self._guard(switch.topic, adapter, _put_back, switch, before)
        self._switched.clear()
        self._ordinals.clear()

    def _install(self, acts: Iterable[Callable[[], Point | None]]) -> None:
        points = [act() for act in acts]
        self._namespaces.replace([point for point in points if point is not None])

    def _wanted(self) -> Iterator[tuple[str, Callable[[], Point | None]]]:
        """The modules with something to install, and what installs it."""
        taps: dict[str, list[Listening]] = {}
        for adapter in self._adapters or ():
            name = str(getattr(adapter, "name", adapter))
            for switch in getattr(adapter, "switches", ()):
                if switch.topic in self._topics:
                    yield (
                        switch.module,
                        partial(self._guard, switch.topic, name, self._switch, name, switch),
                    )
            for tap in getattr(adapter, "taps", ()):
                if tap.topic in self._topics:
                    before, after = getattr(tap, "before", None), getattr(tap, "after", None)
                    taps.setdefault(tap.target, []).append(
                        Listening(name, tap.topic, before, after, bool(getattr(tap, "since", "")))
                    )
        for target, ones in taps.items():
            yield (
                target.partition(":")[0],
                partial(self._guard, ones[0].topic, ones[0].adapter, self._tap, target, ones),
            )

    def _await(self, module: str) -> None:
        if module not in self._awaited:
            self._awaited.add(module)
            when_imported(module, lambda: self._on_import(module))

    def _on_import(self, module: str) -> None:
        """On the thread that imports `module`."""
        self._awaited.discard(module)
        self._arrived.append(module)
        self._settle()

    def _tap(self, target: str, taps: Sequence[Listening]) -> Point | None:
        point = self._points.get(target)
        if point is None:
            try:
                point = self._points[target] = Point(target, self._make_replacement)
            except AttributeError:
                if all(tap.may_be_missing for tap in taps):
                    return None
                raise
        point.taps = tuple(taps)
        point.install()
        return point

    def _switch(self, adapter: str, switch: Any) -> None:
        before = switch.read()
        if before != switch.value:
            switch.write(switch.value)
            self._switched.append((adapter, switch, before))

    def _guard(self, topic: str, adapter: str, act: Callable[..., Any], *args: Any) -> Any:
        """The program must not die of an adapter: a topic in which one fails is switched off."""
        try:
            return act(*args)
        except Exception as error:
            self._fail(topic, adapter, error)
            return None

    def _fail(self, topic: str, adapter: str, error: Exception) -> None:
        if topic not in self._failed:
            self._failed.add(topic)
            self._on_fault(Fault(topic, adapter), error)

    def _make_replacement(self, point: Point, original: Callable[..., Any]) -> Callable[..., Any]:
        is_compiling = sys.modules["torch"].compiler.is_dynamo_compiling
        overridden = sys.modules["torch"].overrides.has_torch_function
        failed = self._failed

        @wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not point.taps or is_quiet():
                return original(*args, **kwargs)
            noted: dict[int, Any] | None = None
            for number, tap in enumerate(point.taps):
                if tap.before is None or tap.topic in failed:
                    continue
                try:
                    note = tap.before(self, *args, **kwargs)
                except Hit:
                    raise
                except Exception as error:
                    self._fail(tap.topic, tap.adapter, error)
                else:
                    if note is not None:
                        noted = {number: note, **(noted or {})}
            try:
                if overridden((*args, *kwargs.values())):
                    with point.aside():
                        result = original(*args, **kwargs)
                else:
                    result = original(*args, **kwargs)
            except BaseException as error:
                leave_out_ours(error)
                raise
            for number, tap in enumerate(point.taps):
                if tap.after is None or tap.topic in failed:
                    continue
                note = None if noted is None else noted.get(number)
                try:
                    if note is None:
                        tap.after(self, result, *args, **kwargs)
                    else:
                        tap.after(self, result, *args, noted=note, **kwargs)
                except Hit:
                    raise
                except Exception as error:
                    self._fail(tap.topic, tap.adapter, error)
            return result

        _made.append(replacement)
        return replacement

    # What adapters tell (tensorpoint_adapters.spec.Observer) -------------------------------------

    def attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        *,
        mask: torch.Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> None:
        call = self._attending()
        if call is not None:
            heads = heads_of(call.module)
            self._attended(call, scored(query, key, mask, is_causal, scale, heads))

    def attention_weights(
        self, weights: torch.Tensor, *, scores: torch.Tensor | None = None
    ) -> None:
        call = self._attending()
        if call is not None:
            self._attended(call, weighted(weights, scores, heads_of(call.module)))

    def in_attention(self) -> bool:
        call = self._innermost()
        if call is None:
            return False
        known = self._attends.get(call.module)
        if known is None:
            known = self._attends[call.module] = attends(call.module)
        return known

    def module(self) -> Module | None:
        calls = self._hooks.running()
        return calls[-1].module if calls else None

    def gradients_scaled(self, scale: float | torch.Tensor) -> None:
        self.scaling.scaled(scale)

    def gradients_unscaled(self, parameters: Iterable[torch.Tensor] | None = None) -> None:
        self.scaling.unscaled(parameters)

    def scale(self, value: float | torch.Tensor) -> None:
        if self._hearing["on_scale"]:
            self._tell("on_scale", float(value))

    def clipping(self, parameters: Iterable[torch.Tensor]) -> None:
        if self._hearing["on_clipping"]:
            self._tell("on_clipping", tuple(parameters))

    def clipped(self, parameters: Iterable[torch.Tensor], total_norm: float | torch.Tensor) -> None:
        if self._hearing["on_clipped"] and is_number(total_norm):
            owned = tuple(parameters)
            scale = self.scaling.scale_of(owned[0]) if owned else None
            self._tell("on_clipped", owned, float(total_norm) / (scale or 1.0))

    # -------------------------------------------------------------------------------------------

    def _attending(self) -> Call | None:
        """The call that an attention belongs to, None if it is not to be counted.

        A checkpointed block that is run again in backward, and what the user tries in the console,
        are not the program's steps.
        """
        if not self._hearing["on_attention"]:
            return None
        if sys.modules["torch"]._C._current_graph_task_id() != -1 or debugger.evaluating():
            return None
        return self._innermost()

    def _innermost(self) -> Call | None:
        """The innermost call but for a softmax or a dropout that an attention has as modules."""
        for call in reversed(self._hooks.running()):
            if not is_part_of_attention(call.module):
                return call
        return None

    def _ordinal(self, call: Call) -> int:
        """How many attentions the module has computed before in this call of its root."""
        module, step = call.module, self._names.step(call.module)
        before = self._ordinals.get(module)
        number = before[1] + 1 if before is not None and before[0] == step is not None else 0
        number = min(number, _MAX_ORDINAL)
        self._ordinals[module] = step, number
        return number

    def _attended(self, call: Call, attention: Attention | None) -> None:
        if attention is not None:
            attention.ordinal = self._ordinal(call)
            self._tell("on_attention", call, attention)

    def _tell(self, event: str, *args: Any) -> None:
        for listener in self._hearing[event]:
            try:
                getattr(listener, event)(*args)
            except Hit:
                raise
            except Exception as error:
                self._hearing = {
                    name: tuple(other for other in heard if other is not listener)
                    for name, heard in self._hearing.items()
                }
                self._on_fault(listener, error)


class Fault:
    """An adapter that failed, as the culprit of a fault: its topic is switched off."""

    def __init__(self, topic: str, adapter: str) -> None:
        self.topic = topic
        self.metric = f"{topic} (adapter {adapter})"


#: All replacements that were ever made. torch.jit knows torch's functions by their address: if it
#: made its table while one of ours was in place, another function at that address later would be
#: taken for it.
_made: list[Callable[..., Any]] = []


def _is_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return name in sys.modules and not getattr(spec, "_initializing", False)


def _put_back(switch: Any, before: Any) -> None:
    if switch.read() == switch.value:
        switch.write(before)
