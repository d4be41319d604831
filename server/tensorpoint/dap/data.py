"""Data breakpoints as DAP has them: what one would be set on, and setting them.

A client asks `dataBreakpointInfo` for a row or an expression and gets an id; the agent keeps what
it stands for. A mode that the client chose becomes the condition of a breakpoint that has none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ..conditions.data import MODES
from ..wire.codec import convert
from ..wire.values import DataRequest
from .breakpoints import DataChoice, Refusal, Tensorpoints, answer
from .injection import AgentError
from .peer import Message, Peer

BREAKPOINT_MODES = [
    {"mode": mode, "label": label, "appliesTo": ["data"]} for mode, label in MODES.items()
]


class DataBreakpoints:
    """Those of a session, and the names of what they may be set on."""

    def __init__(
        self,
        tensorpoints: Tensorpoints,
        find: Callable[[DataRequest, Peer], Awaitable[Message]],
    ) -> None:
        self._tensorpoints = tensorpoints
        #: What a client points at, as the agent numbers it. Raises AgentError.
        self._find_value = find
        self._names: dict[str, str] = {}

    async def info(self, arguments: Message, debugpy: Peer) -> Message:
        """The body of `dataBreakpointInfo`; what can't be watched has no id but a reason."""
        try:
            request = convert(arguments, DataRequest)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None
        if request.mode and request.mode not in MODES:
            raise ValueError(f"mode: {request.mode} is none of {', '.join(MODES)}")
        try:
            found = await self._find(request, debugpy)
        except AgentError as error:
            return {"dataId": None, "description": str(error)}
        key = f"{found.data}:{request.mode}"
        return {
            "dataId": key,
            "description": found.name,
            "accessTypes": ["write"],
            "canPersist": False,
        }

    def set(self, arguments: Message) -> tuple[Message, list[Refusal]]:
        """The body of `setDataBreakpoints`, and what was refused. Raises ValueError."""
        try:
            items = convert(arguments.get("breakpoints") or [], list[dict[str, Any]])
            choices = [self._choice(item) for item in items]
        except msgspec.ValidationError as error:
            raise ValueError(f"breakpoints: {error}") from None
        made = self._tensorpoints.set_data(choices)
        refused = [item for item in made if isinstance(item, Refusal)]
        return {"breakpoints": [answer(item) for item in made]}, refused

    def _choice(self, item: Message) -> DataChoice | Refusal:
        data, _, mode = str(item.get("dataId", "")).partition(":")
        if item.get("accessType") not in (None, "write"):
            return Refusal(data, "only writes can be watched")
        if data not in self._names:  # VS Code sends those of one session to all
            return Refusal(data, f"dataId {item.get('dataId')!r} is of another process")
        condition = str(item.get("condition") or "") or mode
        return DataChoice(data, self._names[data], condition, str(item.get("hitCondition") or ""))

    async def watch(self, text: str, frame: int, debugpy: Peer) -> str:
        """`tp watch EXPRESSION [if CONDITION]`. Raises AgentError, ValueError."""
        expression, _, condition = text.partition(" if ")
        found = await self._find(DataRequest(expression.strip(), frameId=frame), debugpy)
        made = self._tensorpoints.add_data(DataChoice(found.data, found.name, condition.strip()))
        if isinstance(made, Refusal):
            raise ValueError(made.reason)
        number = next(n for n, item, _ in self._tensorpoints.listing() if item.id == made.id)
        return f"{number}: {made.text}"

    async def _find(self, request: DataRequest, debugpy: Peer) -> DataChoice:
        found = await self._find_value(request, debugpy)
        choice = DataChoice(str(found["data"]), str(found["name"]))
        self._names[choice.data] = choice.name
        return choice
