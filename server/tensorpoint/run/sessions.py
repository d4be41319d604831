"""One debugged process as a DAP client begins with it: launched or attached to, armed, let go."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ..dap_client import AdapterError, AdapterGone, Body, DapClient
from .options import LAYER, NONFINITE, STATUS_REFUSED, Arming, RunError

_START_S = 180.0  # a node under load, its packages on a network file system

# debugpy makes breakpoint() stop in the editor. There is none, so it is python's again: pdb, or
# what PYTHONBREAKPOINT says.
_PYTHONS_BREAKPOINT = (
    "(lambda sys: setattr(sys, 'breakpointhook', sys.__breakpointhook__))(__import__('sys'))"
)

# Where the program dies of an exception of torch's: what it was called with, after the traceback.
_PRINT_TORCH_ERRORS = (
    "getattr(__import__('sys').modules.get('_tensorpoint.agent.torch_errors'), "
    "'print_uncaught', int)() and None"
)


@dataclass(eq=False)
class Session:
    """The program, or a child of it, which has a name."""

    client: DapClient
    name: str | None
    pid: int | None = None
    exit_code: int | None = None
    terminated: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


async def begin(
    session: Session, command: str, arguments: Body, arming: Arming, *, list_layers: bool
) -> None:
    """Initialize, launch or attach, arm, and let the process go.

    Raises `RunError` for a condition that is refused.
    """
    client = session.client
    await client.request(
        "initialize",
        {
            "clientID": "tensorpoint",
            "clientName": "tensorpoint run",
            "adapterID": "tensorpoint",
            "pathFormat": "path",
            "linesStartAt1": True,
            "columnsStartAt1": True,
            "supportsVariableType": True,
            "supportsRunInTerminalRequest": True,
            "supportsStartDebuggingRequest": True,
        },
        timeout=_START_S,
    )
    started = await client.start(command, arguments)
    if started is None:
        return
    try:
        for expression in (_PYTHONS_BREAKPOINT, _PRINT_TORCH_ERRORS):
            await client.request("evaluate", {"expression": expression, "context": "repl"})
        await _arm(client, arming)
        if list_layers:
            await client.request("tensorpoint/listLayers")
        await client.request("configurationDone")
        await started
    except AdapterGone:
        raise
    except AdapterError:
        # A process that ends while it is being configured is not an error of ours.
        if started.done() and not started.cancelled() and started.exception() is None:
            return
        raise


async def _arm(client: DapClient, arming: Arming) -> None:
    offered: list[Body] = client.capabilities.get("exceptionBreakpointFilters") or []
    known = {entry.get("filter") for entry in offered}
    launched = [f"tensorpoint.{i}" for i in range(len(arming.conditions))]
    filters = [NONFINITE] if arming.nonfinite else []
    filters += [name for name in launched if name in known]
    answers: list[Body] = []
    answer = await client.request("setExceptionBreakpoints", {"filters": filters})
    answers += answer.get("breakpoints") or []
    if arming.layers:
        answer = await client.request(
            "setFunctionBreakpoints",
            {
                "breakpoints": [
                    {"name": LAYER + name, **({"condition": condition} if condition else {})}
                    for name, condition in arming.layers
                ]
            },
        )
        answers += answer.get("breakpoints") or []
    for breakpoint_ in answers:
        pending = breakpoint_.get("reason") == "pending"
        if not (breakpoint_.get("verified") or pending) and breakpoint_.get("message"):
            raise RunError(f"--on is refused: {breakpoint_['message']}", STATUS_REFUSED)
