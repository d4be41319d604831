"""The agent of this process: takes plans, arms what they ask for, reports faults.

State that the debuggee forces on us sits here: one agent per process, in `_agent`. `start` and
`sync` are called by the adapter through pydevd's evaluate, on pydevd's command thread; hooks run
on the program's threads and read tuples that are replaced whole, never changed in place.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from typing import Any

from ..wire import WIRE_VERSION, Plan, Tensorpoint
from . import debugger
from .hooks import Hooks
from .imports import when_imported
from .layers import LayerBreakpoints
from .modules import Names
from .rules import Rule
from .stop import Stopper
from .watches.base import Watch
from .watches.nonfinite import Nonfinite

#: The event by which the agent speaks to the adapter; not part of DAP, never shown to a client.
EVENT = "tensorpoint"


def start(plan: str) -> str:
    """Start the agent of this process (or find it running) with a plan; returns its greeting."""
    global _agent  # noqa: PLW0603 - one agent per process
    if _agent is None:
        _agent = Agent()
    return _agent.sync(plan)


def sync(plan: str) -> str:
    """Replace the plan; returns the agent's state as JSON."""
    if _agent is None:
        return json.dumps({"error": "the agent is not running in this process"})
    return _agent.sync(plan)


class Agent:
    """Arms watches for the current plan once torch is there."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._plan = Plan(WIRE_VERSION)
        self._rules: dict[Tensorpoint, Rule] = {}
        self._names = Names()
        stop = self._stopper = Stopper(self._names)
        self._watches: tuple[Watch, ...] = (Nonfinite(self._names, stop),)
        self._layers = LayerBreakpoints(self._names, stop)
        self._hooks = Hooks(self._names, self._on_fault)
        self._torch_ready = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)
        when_imported("torch", self._on_torch)

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
        )
        debugger.prepare(self._on_detach)
        with self._lock:
            self._plan = plan
            self._apply()
        return json.dumps(
            {
                "pid": os.getpid(),
                "python": sys.version.partition(" ")[0],
                "torch": getattr(sys.modules.get("torch"), "__version__", None),
                "armed": len(plan.tensorpoints),
            }
        )

    def _on_detach(self) -> None:
        """Nobody is there to see a stop: watch nothing, until the next client sends a plan."""
        with self._lock:
            self._plan = Plan(WIRE_VERSION)
            self._apply()

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
            for tensorpoint in self._plan.tensorpoints
        }
        if not self._torch_ready:
            return
        rules = list(self._rules.values())
        listeners: list[Watch] = []
        for watch in self._watches:
            wanted = [rule for rule in rules if not rule.is_layer and rule.uses(watch.metric)]
            watch.arm(wanted)
            if wanted:
                listeners.append(watch)
        layers = [rule for rule in rules if rule.is_layer]
        self._layers.arm(layers)
        self._hooks.listeners = tuple(listeners)
        self._hooks.on_enter = (self._layers.on_enter,) if layers else ()
        if rules:
            self._hooks.install()
        else:
            self._hooks.remove()

    def _on_fault(self, culprit: Any, error: Exception) -> None:
        """A watch failed: switch it off, say so once, and let the program go on."""
        self._hooks.listeners = tuple(
            listener for listener in self._hooks.listeners if listener is not culprit
        )
        if culprit is self._layers:
            self._hooks.on_enter = ()
        if culprit is self._hooks:
            self._hooks.remove()
        name = getattr(culprit, "metric", type(culprit).__name__)
        self._report(f"watching {name}", error)

    def _report(self, activity: str, error: Exception) -> None:
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
        self._hooks.remove()
        self._hooks.listeners = ()
        self._hooks.on_enter = ()


_agent: Agent | None = None
