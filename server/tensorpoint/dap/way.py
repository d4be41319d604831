"""The way from the operation that made a bad value to where the watch saw it, for the client.

As lines of the console, each with a link, and as a section at the end of the stopped thread's
stack, under a label: editors go to the line of such a frame, but nothing lives in it any more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..wire import OperationReport, PassedBy

Message = dict[str, Any]

_TITLE = "From there the value came by way of"


def outputs(operation: OperationReport | None) -> list[Message]:
    """Bodies of `output` events; none if the value was seen where it was made."""
    passed = _after(operation)
    if not passed:
        return []
    return [
        {"category": "console", "output": f"{_TITLE}\n", "group": "startCollapsed"},
        *(
            {"category": "console", "output": f"  {_text(item)}\n", **_place(item)}
            for item in passed
        ),
        {"category": "console", "output": "", "group": "end"},
    ]


def frames(operation: OperationReport | None, first_id: int) -> list[Message]:
    """The section's frames, with ids from `first_id`; none if there is no such way."""
    passed = _after(operation)
    if not passed:
        return []
    label: Message = {"name": _TITLE, "line": 0, "column": 0, "presentationHint": "label"}
    rows: list[Message] = [
        {"name": _text(item), "line": 0, "presentationHint": "subtle", **_place(item), "column": 1}
        for item in passed
    ]
    return [{**row, "id": first_id + number} for number, row in enumerate([label, *rows])]


def _after(operation: OperationReport | None) -> tuple[PassedBy, ...]:
    return () if operation is None else operation.way[1:]


def _text(passed: PassedBy) -> str:
    return f"{passed.op} in {passed.module}" if passed.module else passed.op


def _place(passed: PassedBy) -> Message:
    if passed.file is None:
        return {}
    source = {"name": Path(passed.file).name, "path": passed.file}
    return {"source": source, "line": passed.line or 1}
