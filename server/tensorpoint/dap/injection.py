"""Boots the agent in the debuggee and sends it plans, through debugpy's own connection.

One frameless `evaluate` after `initialized` and before `configurationDone`: it works for launch,
attach to a running process, subprocesses, forked DataLoader workers and torchrun ranks, needs no
environment variables and no port of ours, and runs before the program's first line. Plans travel
the same way, so control also works where only debugpy's port is reachable.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from ..wire import Plan
from ..wire.codec import encode
from .launch import ADAPTERS_FOLDER, PACKAGE_FOLDER
from .peer import Message, Peer

_BOOTSTRAP = PACKAGE_FOLDER / "agent" / "bootstrap.py"
#: What the debuggee loads, as folders and glob patterns below them.
_DEBUGGEE_ROOMS = (
    *(
        (PACKAGE_FOLDER, room)
        for room in ("__init__.py", "wire/*.py", "conditions/*.py", "agent/**/*.py")
    ),
    (ADAPTERS_FOLDER.parent, f"{ADAPTERS_FOLDER.name}/*.py"),
)
_AGENT = "__import__('sys').modules['_tensorpoint.agent.requests']"
#: Evaluates to the live objects of the stop that the evaluating thread is in.
STOP_VALUES = "__import__('sys').modules['_tensorpoint.agent.stop'].values()"

#: How the expression begins that boots the agent.
_BOOT = "(lambda scope: (exec(compile("
_IMPORTED = (
    "__import__('json').dumps({'names': [name for name, module in "
    "list(__import__('sys').modules.items()) if '-packages' in "
    "str(getattr(module, '__dict__', {}).get('__file__') or '') and getattr("
    "getattr(module, '__dict__', {}).get('__spec__'), 'name', '') == name "
    "and not name.startswith(('debugpy', 'pydev', '_pydev'))]})"
)


class AgentError(Exception):
    """The agent could not be started or refused the plan; the text says why."""


def is_ours_too_slow(output: str) -> bool:
    """Whether debugpy says that what we evaluate takes its time, as it does after three seconds.

    The text is all of the source that the agent is booted with, and no concern of the user's.
    """
    _, told, expression = output.partition("Evaluating: ")
    ours = (_BOOT, _IMPORTED, "__import__('sys').modules['_tensorpoint.")
    return bool(told) and expression.startswith(ours)


async def boot(debugpy: Peer, plan: Plan) -> dict[str, Any]:
    """Start the agent with `plan`; returns its greeting. Raises AgentError."""
    arguments = f"{str(PACKAGE_FOLDER)!r}, {encode(plan)!r}"
    greeting = await evaluate(debugpy, _boot_expression(arguments))
    if "unreadable" in greeting:  # in a container or on another machine: send the agent itself
        sources = {
            path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
            for folder, room in _DEBUGGEE_ROOMS
            for path in folder.glob(room)
        }
        greeting = await evaluate(debugpy, _boot_expression(f"{arguments}, {sources!r}"))
    return greeting


def _boot_expression(arguments: str) -> str:
    source = _BOOTSTRAP.read_text(encoding="utf-8")
    call = f"boot({arguments})"
    return (
        f"{_BOOT}{source!r}, {str(_BOOTSTRAP)!r}, 'exec'), scope), eval({call!r}, scope))[1])"
        "({'__name__': '_tensorpoint_bootstrap'})"
    )


async def sync(debugpy: Peer, plan: Plan) -> dict[str, Any]:
    """Replace the agent's plan; returns its state. Raises AgentError."""
    return await evaluate(debugpy, f"{_AGENT}.sync({encode(plan)!r})")


async def facts(debugpy: Peer, request: Message) -> dict[str, Any]:
    """What the agent has recorded, by the arguments of `tensorpoint/facts`. Raises AgentError."""
    return await evaluate(debugpy, f"{_AGENT}.facts({json.dumps(request)!r})")


async def hot_swap(debugpy: Peer, files: list[str]) -> dict[str, Any]:
    """Swap the functions of these files; says which files the program has. Raises AgentError."""
    return await evaluate(debugpy, f"{_AGENT}.hot_swap({files!r})")


async def no_grad(debugpy: Peer, glob: str) -> str:
    """What the agent says of parameters without a gradient. Raises AgentError."""
    return str((await evaluate(debugpy, f"{_AGENT}.no_grad({glob!r})"))["text"])


async def list_layers(debugpy: Peer) -> dict[str, Any]:
    """Have the agent list the layer events of the next step. Raises AgentError."""
    return await evaluate(debugpy, f"{_AGENT}.list_layers()")


async def layer_tree(debugpy: Peer, request: Message) -> dict[str, Any]:
    """The modules of the running models, by the arguments of `tensorpoint/layers`."""
    return await evaluate(debugpy, f"{_AGENT}.layer_tree({json.dumps(request)!r})")


async def imported(debugpy: Peer) -> list[str]:
    """The modules that the program has imported of what is installed. Raises AgentError."""
    return [*(await evaluate(debugpy, _IMPORTED))["names"]]


async def values(debugpy: Peer, kind: str, request: Message) -> dict[str, Any]:
    """What the agent says of values. Raises AgentError."""
    asked = json.dumps({"kind": kind, **request})
    return await evaluate(debugpy, f"{_AGENT}.values({asked!r})")


async def evaluate(debugpy: Peer, expression: str, frame: int | None = None) -> dict[str, Any]:
    """The JSON object that `expression` evaluates to, in a frame or nowhere. Raises AgentError."""
    where = {} if frame is None else {"frameId": frame}
    response = await debugpy.request(
        "evaluate", {"expression": expression, "context": "clipboard", **where}
    )
    return evaluated(response, in_frame=frame is not None)


def evaluated(response: Message, *, in_frame: bool) -> dict[str, Any]:
    """The JSON object in the answer of an `evaluate`. Raises AgentError."""
    body: Message = response.get("body") or {}
    result = str(body.get("result", ""))
    if not response.get("success"):
        raise AgentError(str(response.get("message") or result or "the evaluation failed"))
    try:
        # In a frame the result is shown as a value: a string in quotes.
        state: Any = json.loads(ast.literal_eval(result) if in_frame else result)
    except (ValueError, SyntaxError):
        raise AgentError(result.strip() or "the debuggee did not answer") from None
    if not isinstance(state, dict):
        raise AgentError(f"unexpected answer {result!r}")
    if "error" in state:
        raise AgentError(str(state["error"]))  # pyright: ignore[reportUnknownArgumentType]
    return state  # pyright: ignore[reportUnknownVariableType]
