"""What the debug adapter asks of the agent of this process, and that agent.

The adapter calls these functions through pydevd's evaluate, on pydevd's command thread unless one
says otherwise; they take and answer text. State that the debuggee forces on us sits here: one agent
per process, in `_agent`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from . import adapters, points
from .session import Agent

#: Held while the agent is made: `listen` and `watch` are called on any thread.
_starting = threading.Lock()
_agent: Agent | None = None


def start(plan: str) -> str:
    """Start the agent of this process (or find it running) with a plan; returns its greeting."""
    try:
        return running().sync(plan)
    finally:
        points.forget_ahead()


def look_ahead() -> None:
    """Note what `start` looks for, in a process that programs fork from. Raises ImportError."""
    points.look_ahead(tap.target for adapter in adapters.built_in() for tap in adapter.taps)


def running() -> Agent:
    """The agent of this process, started if need be."""
    global _agent  # noqa: PLW0603 - one agent per process
    with _starting:
        if _agent is None:
            _agent = Agent()
        return _agent


def _answer(ask: Callable[[Agent], str]) -> str:
    if _agent is None:
        return json.dumps({"error": "the agent is not running in this process"})
    return ask(_agent)


def sync(plan: str) -> str:
    """Replace the plan; returns the agent's state as JSON."""
    return _answer(lambda agent: agent.sync(plan))


def facts(request: str) -> str:
    """What was recorded; `request` is JSON, the arguments of `tensorpoint/facts`."""
    return _answer(lambda agent: agent.facts.answer(request))


def layer_tree(request: str) -> str:
    """The running model's modules; `request` is JSON, the arguments of `tensorpoint/layers`."""
    return _answer(lambda agent: agent.layer_tree(request))


def values(request: str) -> str:
    """A request about values (`values.requests`) and its answer, both JSON."""
    return _answer(lambda agent: agent.values(request))


def steps(request: str) -> str:
    """Steps through layers; to be evaluated on the suspended thread. See `stepping.requests`."""
    return _answer(lambda agent: agent.steps.answer(request))


def list_layers() -> str:
    """List the layer events of the next step; they come as an event."""
    return _answer(lambda agent: agent.list_layers())


def layer(number: int) -> Any:
    """A layer of the suspended thread, innermost first, for expressions about it."""
    if _agent is None:
        raise RuntimeError("the agent is not running in this process")
    return _agent.steps.layer(number)


def no_grad(glob: str) -> str:
    """The parameters that got no gradient in the newest step, for `tp nograd`."""
    return _answer(lambda agent: agent.no_grad(glob))


def hot_swap(files: list[str]) -> str:
    """Give the functions of these files the code that is in them; says which files there are."""
    return _answer(lambda agent: agent.hot_swap(files))
