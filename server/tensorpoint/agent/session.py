"""The agent: takes plans, arms what they ask for, reports faults.

It is asked on pydevd's command thread (`requests`); hooks run on the program's threads and read
tuples that are replaced whole, never changed in place.
"""

from __future__ import annotations

import json
import linecache
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..wire import WIRE_VERSION, Facts, Plan, Tensorpoint
from . import adapters, debugger, debugger_files, debugger_forks, debugger_threads
from . import layer_tree as trees
from .attention_maps import AttentionMaps
from .engine_threads import EngineThreads, waiting_frame
from .facts import Recorder
from .facts_file import Keeper, as_json
from .globs import Globs
from .gradients import Gradients
from .hit import TensorpointWarning
from .hooks import Hooks
from .hotswap.swap import HotSwap
from .imports import load_untraced, when_imported
from .judge import Judge
from .layers import LayerBreakpoints
from .local import LocalRule
from .modules import Names
from .ops.locate import Locator
from .process import age, before_hanging_up
from .rules import Rule
from .showing import Showing
from .stepping.requests import Requests
from .stepping.stepper import Stepper
from .stop import Stopper
from .taps import Taps
from .torch_errors import TorchErrors, calls_torch
from .updates import Updates
from .watches import all_watches
from .watches.base import Watch
from .watches.no_grad import NoGrad
from .watches.update_size import UpdateSize
from .weights import Weights

if TYPE_CHECKING:
    from .data.watch import DataWatch

#: The event by which the agent speaks to the adapter; not part of DAP, never shown to a client.
EVENT = "tensorpoint"


class Agent:
    """Arms watches for the current plan once torch is there."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        #: What the client wants; None while there is none that speaks to us.
        self._plan: Plan | None = None
        #: What a client that doesn't gets (`listen`).
        self._standing: tuple[Tensorpoint, ...] = ()
        #: What the program watches by itself, with no client or beside it.
        self._local: tuple[LocalRule, ...] = ()
        self._rules: dict[Tensorpoint, Rule] = {}
        self._names = Names()
        self._globs = Globs(self._names, self._tell_of_glob)
        self._names.on_counted = self._look_at_globs
        self._names.on_named = self._forget
        self._hooks = Hooks(self._names, self._on_fault)
        self._gradients = Gradients(self._names, self._on_fault)
        self._updates = Updates(self._names, self._on_fault)
        self._taps = Taps(
            lambda: adapters.find(self._on_fault), self._names, self._hooks, self._on_fault
        )
        scale_of = self._taps.scaling.scale_of
        self._locator = Locator(
            self._names,
            self._hooks.aside,
            lambda optimizer: any(watch.is_risky(optimizer) for watch in self._listeners),
            scale_of,
            self._on_fault,
            lambda func, arguments: self._showing.on_write(func, arguments),  # noqa: PLW0108
            lambda: any(watch.clips_bad_gradient for watch in self._listeners),
        )
        stop = self._stopper = Stopper(self._names, self._locator.locate)
        judge = self._judge = Judge(self._names, stop)
        self._layers = LayerBreakpoints(self._names, stop, self._tell_of_layers, self._report)
        self._stepper = Stepper(
            self._names,
            self._hooks,
            self._locator.entries,
            stop.show,
            self._switch,
            self._on_fault,
        )
        self._watches = all_watches(self._names, judge, scale_of, self._gradients.known_norms)
        self._recorder = Recorder(self._names, scale_of)
        self.facts = Keeper(self._recorder, self._tell_facts, self._report)
        self._maps = AttentionMaps(self._switch_maps)
        self._showing = Showing(
            self._names,
            self._recorder,
            self._locator.made_by,
            self._maps,
            stop,
            self._report,
            self._tell,
        )
        self.steps = Requests(self._stepper, self._showing)
        #: The watches that are armed and have not failed.
        self._listeners: tuple[Watch, ...] = ()
        #: What watches data breakpoints, if there are any.
        self._watching: DataWatch | None = None
        self._engine_threads = EngineThreads()
        self._weights = Weights(self._report, self._tell)
        self._swapper: HotSwap | None = None
        self._torch_ready = False
        before_hanging_up(self._end)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)
        debugger_threads.continue_stacks(waiting_frame)
        errors = TorchErrors(self._names, self._locator.failed)
        debugger.describe_exceptions(errors.describe, calls_torch, self._report)
        when_imported("torch", self._on_torch)
        if debugger.has_trace_function():
            load_untraced(debugger_files.steps_into, debugger.untraced, debugger.traced)

    def sync(self, text: str) -> str:
        """Take a plan (JSON of `wire.Plan`). A plan of another version is refused."""
        message = json.loads(text)
        if message["version"] != WIRE_VERSION:
            return json.dumps(
                {
                    "error": f"the adapter speaks version {message['version']} and the agent in "
                    f"process {os.getpid()} version {WIRE_VERSION}: restart the program"
                }
            )
        plan = Plan(
            version=message["version"],
            tensorpoints=tuple(Tensorpoint(**item) for item in message["tensorpoints"]),
            record=message.get("record", False),
            facts_file=message.get("facts_file", ""),
            precision=message.get("precision", "module"),
            keep_weights=message.get("keep_weights", False),
            weights_host=message.get("weights_host", ""),
        )
        self._prepare()
        with self._lock:
            self._plan = plan
            self._apply()
        return json.dumps(
            {
                "pid": os.getpid(),
                "python": sys.version.partition(" ")[0],
                "torch": getattr(sys.modules.get("torch"), "__version__", None),
                "armed": len(plan.tensorpoints),
                "age": age(),
            }
        )

    def layer_tree(self, request: str) -> str:
        """Answer `tensorpoint/layers`."""
        return trees.answer(self._names, request)

    def values(self, request: str) -> str:
        """Answer a request about values."""
        return json.dumps(self._showing.answer(json.loads(request)))

    def list_layers(self) -> str:
        """Answer `tensorpoint/listLayers`."""
        self._stepper.trace(
            lambda events, is_last: debugger.send_event(
                EVENT, {"kind": "listing", "events": events, "last": is_last}
            )
        )
        return json.dumps({})

    def hot_swap(self, files: list[str]) -> str:
        """Swap the functions of these files, and answer which files the program has."""
        if self._swapper is None:
            self._swapper = HotSwap()
        known = self._swapper.files()
        reports = [self._swapper.swap(file).as_message() for file in files]
        if files:
            linecache.checkcache()
            debugger.forget_code()
        return json.dumps({"files": known, "reports": reports})

    def no_grad(self, glob: str) -> str:
        """Answer `tp nograd`."""
        watch = next(watch for watch in self._watches if isinstance(watch, NoGrad))
        return json.dumps({"text": watch.report(glob)})

    def stand_by(self, tensorpoints: tuple[Tensorpoint, ...]) -> None:
        """Watch these for any client that is attached and has sent no plan."""
        self._prepare(hides_agent=True)
        with self._lock:
            self._standing = tensorpoints
            self._apply()

    def add(self, rules: Sequence[LocalRule]) -> None:
        """Watch for these as well, for the program itself."""
        self._prepare(hides_agent=True)
        with self._lock:
            self._local = (*self._local, *rules)
            try:
                self._apply()
            except Exception:
                self.take_out(rules)
                raise

    def take_out(self, rules: Sequence[LocalRule]) -> None:
        """Watch no longer for rules that were added."""
        with self._lock:
            self._local = tuple(rule for rule in self._local if rule not in rules)
            self._apply()

    def outcomes(self, rules: Sequence[LocalRule]) -> list[str | None]:
        """Why each of these has matched no module; "" if it has, None if nothing was called."""
        return [self._globs.outcome(rule) for rule in rules]

    def _prepare(self, *, hides_agent: bool = False) -> None:
        """Make the debugger, if there is one, stop and show values as we do."""
        if debugger.prepare(self._on_detach, self._on_attach, hides_agent=hides_agent):
            debugger_forks.install(self._report)
            self._showing.install()

    def _on_attach(self) -> None:
        """A client has configured its session; ours has sent a plan before that."""
        with self._lock:
            if self._plan is None and self._standing:
                self._apply()

    def _on_detach(self) -> None:
        """Nobody is there to see a stop: watch nothing for clients until the next one comes."""
        with self._lock:
            self._plan = None
            self._maps.let_go()
            self._apply()

    def _switch(self) -> None:
        """Stepping begins or has ended."""
        with self._lock:
            if self._torch_ready:
                self._hook_up(self._listeners)

    def _switch_maps(self) -> None:
        """Attention is looked at, or no longer."""
        with self._lock:
            if self._torch_ready:
                others = [watch for watch in self._listeners if watch is not self._maps]
                self._hook_up([*others, self._maps] if self._maps.is_on else others)

    def _on_torch(self) -> None:
        with self._lock:
            self._torch_ready = True
            try:
                self._apply()
            except Exception as error:
                self._report("arming the watches", error)

    def _apply(self) -> None:
        # An unchanged tensorpoint keeps its rule, which remembers where it is true already.
        self._rules = {
            tensorpoint: self._rules.get(tensorpoint) or Rule(tensorpoint)
            for tensorpoint in self._asked_for()
        }
        self.facts.leave_in("" if self._plan is None else self._plan.facts_file)
        plan = self._plan or Plan(WIRE_VERSION)
        self._weights.want(plan.keep_weights, plan.weights_host)
        if not self._torch_ready:
            return
        if self._plan is None:
            self._engine_threads.remove()
        else:
            self._engine_threads.install()
        rules = [*self._rules.values(), *self._local]
        data = [rule for rule in rules if rule.tensorpoint.kind == "data"]
        conditions = [rule for rule in rules if not rule.is_layer and rule not in data]
        layers = [rule for rule in rules if rule.is_layer]
        # The adapter is told of its layers as soon as there is a model.
        own_layers = [rule for rule in layers if isinstance(rule, LocalRule)]
        self._globs.arm([*conditions, *own_layers])
        self._judge.arm(conditions, [watch.metric for watch in self._watches])
        listeners: list[Watch] = []
        for watch in self._watches:
            wanted = [rule for rule in conditions if watch.is_meant_by(rule)]
            watch.arm(wanted)
            if wanted:
                listeners.append(watch)
        self._recorder.record(self._plan is not None and self._plan.record)
        if self._recorder.is_recording:
            listeners.append(self._recorder)
        for watch in self._watches:
            if isinstance(watch, UpdateSize):
                watch.note = self._recorder.note_update if self._recorder.is_recording else None
        self._layers.arm(layers)
        watching = self._showing.arm(data)
        if watching is not None:
            listeners.append(watching)
        if self._maps.is_on:
            listeners.append(self._maps)
        self._locator.arm("module" if self._plan is None or not rules else self._plan.precision)
        self._watching = watching
        self._hook_up(listeners)

    def _hook_up(self, listeners: Sequence[Watch]) -> None:
        """Hook what is armed now, and nothing else."""
        stepping, watching = self._stepper.is_on, self._watching
        counted = stepping or self._layers.hears_entries
        self._hooks.on_enter = (
            *((self._stepper.order.on_enter,) if counted else ()),
            *((self._layers.on_enter,) if self._layers.hears_entries else ()),
            *((watching.on_enter,) if watching is not None else ()),
            *((self._stepper.on_enter,) if stepping else ()),
        )
        self._hooks.on_leave = (
            *((self._layers.on_leave,) if self._layers.hears_exits else ()),
            *((self._stepper.on_leave,) if stepping else ()),
        )
        self._listen(listeners)
        if self._rules or self._local or listeners or stepping:
            self._hooks.install()
            self._updates.install()
        else:
            self._unhook()

    def _listen(self, listeners: Sequence[Watch]) -> None:
        """Tell exactly these of what happens; each source hooks only what somebody needs."""
        self._listeners = tuple(listeners)
        looking = any(watch.metric in ("nonfinite", "data") for watch in listeners)
        locating = self._locator.listeners() if looking else ()
        stepper = (self._stepper,) if self._stepper.is_on else ()
        if not locating and (stepper or self._layers.hears_entries):
            # A step back runs a call again from its beginning.
            locating = self._locator.entries_alone()
        if not locating:
            self._locator.entries.forget()
        backward = looking and any("backward" in watch.options for watch in listeners)
        self._locator.follow_losses(backward)
        if backward:
            self._gradients.listen((*listeners, *locating, *stepper))
        else:
            self._gradients.listen((*listeners, *stepper))
        # The sources of gradients find new parameters where roots are called and optimizers step.
        inner: tuple[Any, ...] = (self._gradients,) if self._gradients.is_installed else ()
        self._hooks.listen((*inner, *listeners, *locating))
        self._updates.listen((*inner, *listeners, *locating, *stepper))
        self._taps.listen((*listeners, *locating), ("gradients",) if inner else ())

    def _unhook(self) -> None:
        """Leave nothing of ours in torch."""
        self._listen(())
        self._hooks.remove()
        self._hooks.on_enter = self._hooks.on_leave = ()
        self._updates.remove()

    def _asked_for(self) -> tuple[Tensorpoint, ...]:
        if self._plan is not None:
            return self._plan.tensorpoints
        return self._standing if debugger.attached() else ()

    def _on_fault(self, culprit: Any, error: Exception) -> None:
        """A watch failed: switch it off, say so once, and let the program go on.

        A fault of a source switches off all that listens to it, which leaves nothing hooked.
        """
        if culprit in (self._hooks, self._gradients, self._updates):
            self._unhook()
        elif culprit is self._locator or culprit in self._locator.listeners():
            self._locator.give_up()
            self._listen(self._listeners)
        elif isinstance(culprit, Watch) and culprit not in self._listeners:
            return  # switched off a moment ago, for a fault of another phase
        else:
            failed = getattr(culprit, "metric", None)  # all phases of it: they look at the same
            self._listen([watch for watch in self._listeners if watch.metric != failed])
        if culprit is self._layers:
            self._layers.arm(())
            self._hook_up(self._listeners)
        if culprit is self._stepper:
            self._stepper.stop()
        if self._recorder not in self._listeners:
            self._recorder.record(False)
        name = getattr(culprit, "metric", type(culprit).__name__)
        self._report(f"watching {name}", error)

    def _tell(self, text: str) -> None:
        """Say something in the client's console."""
        debugger.send_event(EVENT, {"kind": "note", "text": text})

    def _tell_facts(self, facts: Facts) -> None:
        """Leave what was recorded with the adapter, which keeps it for after the end."""
        message = json.loads(as_json(facts))
        debugger.send_event(EVENT, {"kind": "facts", "facts": message})

    def _tell_of_layers(self, found: list[tuple[int, str]]) -> None:
        """Which of the layers that breakpoints name there are."""
        entries = [{"id": id, "unknown": unknown} for id, unknown in found]
        debugger.send_event(EVENT, {"kind": "layers", "breakpoints": entries})

    def _tell_of_glob(self, rule: Rule, text: str) -> bool:
        """A condition has matched no module."""
        if isinstance(rule, LocalRule):
            return rule.warn_unmatched(text)
        debugger.send_event(EVENT, {"kind": "unmatched", "text": text})
        return True

    def _forget(self, modules: frozenset[int]) -> None:
        """These ids are those of new modules."""
        for rule in (*self._rules.values(), *self._local):
            rule.forget(modules)

    def _look_at_globs(self) -> None:
        try:
            self._globs.on_call()
        except Exception as error:
            self._globs.arm(())
            self._report("looking for what conditions name", error)

    def _end(self) -> None:
        """The program ends, and its debugger is there yet."""
        try:
            for rule, why in self._globs.untold():
                if not isinstance(rule, LocalRule):
                    self._tell_of_glob(rule, why)
        except Exception as error:
            self._report("looking for what conditions name", error)

    def _report(self, activity: str, error: Exception) -> None:
        if self._local:
            warnings.warn(
                f"a fault while {activity}: {type(error).__name__}: {error}; it is switched off",
                TensorpointWarning,
                stacklevel=2,
            )
        debugger.send_event(
            EVENT,
            {
                "kind": "fault",
                "activity": activity,
                "error": f"{type(error).__name__}: {error}",
                "traceback": "".join(traceback.format_exception(error)),
            },
        )

    def _after_fork(self) -> None:
        """A forked child watches nothing until its own debug session sends it a plan."""
        self._lock = threading.RLock()
        self._stopper.after_fork()
        self._globs.after_fork()
        self._taps.after_fork()
        self._locator.after_fork()
        self._stepper.after_fork()
        self._unhook()
        self._recorder.after_fork()
        self._maps.let_go()
        self._showing.after_fork()
        self.facts.after_fork()
        self._weights.after_fork()
        self._plan = None
        if self._local:  # the `with` goes on in the child
            self._apply()
