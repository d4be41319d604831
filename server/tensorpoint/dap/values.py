"""Values beyond what debugpy relays: memory references, places in the source, tensors in pictures.

pydevd's answers have no place for some fields of DAP; the agent puts them into the presentation
hint (`agent.debugger_values`), and they are moved to where they belong here.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict
from typing import Any

import msgspec

from ..wire.codec import convert
from ..wire.values import InlineRequest, MemoryRequest, TensorRequest
from . import injection
from .peer import Message, Peer

#: What the agent's hint may hold, and whether that is a place in the source.
_FIELDS = {
    "memoryReference": False,
    "valueLocationReference": True,
    "declarationLocationReference": True,
    # Tells VS Code which entries a variable's context menu has; others ignore it.
    "__vscodeVariableMenuContext": False,
}


class Places:
    """Places in the source that a client knows by a number, until the program goes on."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._places: dict[int, tuple[str, int]] = {}

    def clear(self) -> None:
        """The program runs again."""
        self._places.clear()

    def take_out_of_all(self, body: Message) -> None:
        """`take_out` of each variable in an answer."""
        for row in body.get("variables") or ():
            self.take_out(row)

    def present(self, body: Message) -> None:
        """`take_out` of an answer, be it of one value or of several."""
        self.take_out(body)
        self.take_out_of_all(body)

    def take_out(self, row: Message) -> None:
        """Put what the agent says of a variable (or an evaluation) where DAP has it."""
        hint: Message = row.get("presentationHint") or {}
        more: Message | None = hint.pop("tensorpoint", None)
        if more is None:
            return
        if not hint:
            del row["presentationHint"]
        for name, is_place in _FIELDS.items():
            if name in more:
                row[name] = self._number(more[name]) if is_place else more[name]

    def _number(self, place: list[Any]) -> int:
        number = next(self._numbers)
        self._places[number] = str(place[0]), int(place[1])
        return number

    def location(self, arguments: Message) -> Message:
        """The body of `locations`. Raises ValueError."""
        place = self._places.get(arguments.get("locationReference", 0))
        if place is None:
            raise ValueError("this place is not known: the program has gone on since")
        file, line = place
        return {"source": {"path": file}, "line": line}


async def memory(arguments: Message, debugpy: Peer) -> Message:
    """The body of `readMemory`. Raises ValueError, AgentError."""
    request = _convert(arguments, MemoryRequest)
    return await injection.values(debugpy, "memory", asdict(request))


async def inline(arguments: Message, debugpy: Peer) -> Message:
    """The body of `tensorpoint/inlineValues`. Raises ValueError, AgentError."""
    request = _convert(arguments, InlineRequest)
    return await injection.values(debugpy, "inline", asdict(request))


async def tensor(arguments: Message, debugpy: Peer) -> Message:
    """The body of `tensorpoint/tensor`. Raises ValueError, AgentError."""
    request = _convert(arguments, TensorRequest)
    fields = asdict(request)
    if request.expression is not None:
        found = await debugpy.request(
            "evaluate",
            {"expression": request.expression, "frameId": request.frameId, "context": "variables"},
        )
        if not found.get("success"):
            raise ValueError(f"{request.expression}: {found.get('message')}")
        fields["variablesReference"] = int(found["body"].get("variablesReference") or 0)
        if not fields["variablesReference"]:
            raise ValueError(f"{request.expression} is no tensor, no array and no module")
    return await injection.values(debugpy, "tensor", fields)


def _convert(arguments: Message, kind: Any) -> Any:
    try:
        return convert(arguments, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
