"""What the client may ask while a thread stands at a tensorpoint: why, and what is in it."""

from __future__ import annotations

from typing import Any

import msgspec

from ..wire import OperationReport, Stop
from ..wire.codec import convert
from ..wire.torch_error import TorchError
from . import way
from .injection import STOP_VALUES
from .peer import Peer

Message = dict[str, Any]

#: Our variable references; pydevd's count up from 1 and stay far below.
_FIRST_REFERENCE = 1_900_000_000
#: Our frame ids, likewise; so many for each thread.
_FIRST_FRAME, _LAST_FRAME, _FRAMES = 1_600_000_000, 1_699_999_999, 100
#: What pydevd adds to the items of a dictionary.
_NOT_ITEMS = frozenset({"special variables", "function variables", "class variables", "len()"})


def torch_error(body: Message) -> TorchError | None:
    """What a `stopped` event's body says of an exception of torch's, if it says so."""
    try:
        return convert(body["torchError"], TorchError)
    except (KeyError, msgspec.ValidationError):
        return None


class Stops:
    """The tensorpoint stops of the threads that are suspended now."""

    def __init__(self) -> None:
        self._by_thread: dict[int, Stop] = {}
        self._threads_of_frames: dict[int, int] = {}
        #: File and function of the frames of a second run that the client has not yet asked for.
        self._replayed: dict[int, list[tuple[str, str]]] = {}
        #: What is listed below a thread's frames.
        self._ways: dict[int, list[Message]] = {}

    def take(self, body: Message) -> Stop | None:
        """Remember the stop in a `stopped` event's body, if it is one of ours."""
        try:
            stop = convert(body["tensorpoint"], Stop)
        except (KeyError, msgspec.ValidationError):
            return None
        thread = int(body.get("threadId", 0))
        self._by_thread[thread] = stop
        first = _FIRST_FRAME + len(self._ways) * _FRAMES
        self._ways[thread] = way.frames(stop.operation, first)
        return stop

    def clear(self) -> None:
        """The program runs again: frame ids and references are dead."""
        self._by_thread.clear()
        self._threads_of_frames.clear()
        self._replayed.clear()
        self._ways.clear()

    def note_stack(self, thread: int, start: int, levels: int, body: Message) -> None:
        """Learn which frame id the top frame of a stopped thread has, and add to its stack.

        Editors ask for the top frame, then for the rest; no `levels` (0) are all.
        """
        frames: list[Message] = body.get("stackFrames") or []
        if thread not in self._by_thread:
            return
        if start == 0 and frames:
            self._threads_of_frames[int(frames[0]["id"])] = thread
            self._replayed[thread] = list(self._by_thread[thread].replayed_frames)
        _mark_replayed(frames, self._replayed.get(thread, []))
        below, real = self._ways[thread], int(body.get("totalFrames") or start + len(frames))
        if below:
            end = start + (levels or real + len(below))
            shown = below[max(0, start - real) : max(0, end - real)]
            body.update(stackFrames=[*frames, *shown], totalFrames=real + len(below))

    @staticmethod
    def is_past(frame: int) -> bool:
        """Whether a frame id is that of an operation that is over."""
        return _FIRST_FRAME <= frame <= _LAST_FRAME

    def exception_info(self, arguments: Message) -> Message | None:
        """The body of `exceptionInfo`, or None if the thread isn't at one of our stops."""
        stop = self._by_thread.get(int(arguments.get("threadId", 0)))
        if stop is None:
            return None
        return {
            "exceptionId": stop.description.removeprefix("Paused on "),
            "description": stop.text,
            "breakMode": "always",
            "details": {
                "message": stop.text,
                "typeName": stop.event,
                "fullTypeName": f"tensorpoint.{stop.event}",
            },
        }

    def scope(self, frame: int) -> Message | None:
        """The "Tensor event" scope for the top frame of one of our stops."""
        if frame not in self._threads_of_frames:
            return None
        return {
            "name": "Tensor event",
            "variablesReference": _FIRST_REFERENCE + frame,
            "expensive": False,
        }

    def owns(self, reference: int) -> bool:
        """Whether a variables reference is the one of our scope."""
        return reference - _FIRST_REFERENCE in self._threads_of_frames

    async def variables(self, reference: int, debugpy: Peer) -> list[Message]:
        """The rows of our scope: the diagnosis, then the live objects as pydevd expands them."""
        frame = reference - _FIRST_REFERENCE
        stop = self._by_thread[self._threads_of_frames[frame]]
        rows = [_row(name, value) for name, value in _facts(stop)]
        found = await debugpy.request(
            "evaluate", {"expression": STOP_VALUES, "frameId": frame, "context": "watch"}
        )
        children = int(found.get("body", {}).get("variablesReference", 0))
        if children:
            expanded = await debugpy.request("variables", {"variablesReference": children})
            rows += [
                {**item, "name": str(item["name"]).strip("'\"")}
                for item in expanded.get("body", {}).get("variables", [])
                if item.get("name") not in _NOT_ITEMS
            ]
        return rows


def _mark_replayed(frames: list[Message], expected: list[tuple[str, str]]) -> None:
    """Say of the frames of a second run that they are, and take them out of `expected`.

    Of those the client may not see all.
    """
    for frame in frames:
        place = str(frame.get("source", {}).get("path", "")), str(frame["name"])
        if place not in expected:
            expected.clear()
            return
        del expected[: expected.index(place) + 1]
        frame["name"] += " (replayed)"


def _facts(stop: Stop) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [
        ("event", stop.event),
        ("condition", stop.condition),
        ("layer", f"{stop.module or '(root)'} ({stop.module_type})"),
        *_of_operation(stop.operation),
        ("step", stop.step),
        ("optimizer_step", stop.optimizer_step),
    ]
    tensor = stop.tensor
    if tensor is not None:
        facts += [
            ("tensor", f"{tensor.name}: {tensor.dtype}{list(tensor.shape)} {tensor.device}"),
            ("NaN", tensor.nan),
            ("+Inf", tensor.posinf),
            ("-Inf", tensor.neginf),
            ("elements", tensor.elements),
            ("first bad index", None if tensor.first_index is None else list(tensor.first_index)),
            ("finite min", tensor.finite_min),
            ("finite max", tensor.finite_max),
        ]
    facts.append(("diagnosis", stop.text))
    return facts


def _of_operation(operation: OperationReport | None) -> list[tuple[str, object]]:
    if operation is None:
        return []
    rows: list[tuple[str, object]] = [("operation", operation.name)]
    if operation.cause is not None:
        rows += [("cause", operation.cause), ("cure", operation.cure)]
    rows += [
        (
            f"operand {operand.name}",
            f"{operand.dtype}{list(operand.shape)} {operand.device}, "
            f"{operand.min} to {operand.max}, {operand.nonfinite} not finite",
        )
        for operand in operation.operands
    ]
    if operation.node is not None:
        rows.append(("autograd node", operation.node))
        rows.append(("forward line", f"{operation.forward_file}:{operation.forward_line}"))
    return rows


def _row(name: str, value: object) -> Message:
    return {"name": name, "value": str(value), "variablesReference": 0}
