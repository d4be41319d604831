"""What clients ask of values beyond DAP's `variables`: a tensor in pictures, inline values, memory.

Asked by `evaluate` without a frame, on pydevd's command thread, while the program stands still.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from types import FrameType
from typing import Any

from .. import debugger_values
from ..attention_maps import AttentionMaps
from ..data import lookup
from ..data.lookup import NotWatchable
from ..data.targets import Target, Targets
from ..facts import Recorder
from . import attention, figures, memory, pictures
from .devices import Unavailable
from .kinds import is_array
from .pages import as_tensor
from .pictures import NotPossible
from .plain import device_of, elements_of, is_module, is_tensor, number, read, shape_of
from .view import View

_MOST_INLINE = 200
_LONGEST = 80


class Refused(ValueError):
    """The request can't be answered; the text says why."""


class Requests:
    """Answers requests about values, each a JSON object with a `kind`."""

    def __init__(
        self, view: View, recorder: Recorder, targets: Targets, maps: AttentionMaps
    ) -> None:
        self._view, self._recorder, self._targets = view, recorder, targets
        self._maps = maps
        self._kinds: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "tensor": self._tensor,
            "inline": self._inline,
            "memory": self._memory,
            "data": self._data,
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The body of the answer. Raises Refused."""
        try:
            return self._kinds[request["kind"]](request)
        except (LookupError, NotPossible, NotWatchable) as error:
            raise Refused(str(error)) from None
        finally:
            self._view.known.owners.answered()

    def _tensor(self, request: dict[str, Any]) -> dict[str, Any]:
        """Metadata, and of figures, histogram, slice, image and rows what is asked for."""
        value = debugger_values.value_of(request["variablesReference"])
        wanted = set(request["parts"])
        body: dict[str, Any]
        if is_module(value):
            body = {"line": self._view.text(value, None), "history": self._history(value)}
            attends = attention.attending_in(value) if "attention" in wanted else []
            if attends:
                body["attention"] = _or_why(
                    lambda: attention.map_of(attends, request["index"], self._maps)
                )
            return body
        tensor = value if is_tensor(value) else as_tensor(value) if is_array(value) else None
        if tensor is None:
            raise Refused(f"{type(value).__name__} is no tensor, no array and no module")
        shape = shape_of(tensor)
        body = {
            "line": self._view.text(value, None),
            "shape": None if shape is None else [_size(size) for size in shape],
            "dtype": str(read(tensor, "dtype")).removeprefix("torch."),
            "device": str(device_of(tensor)),
            "elements": elements_of(tensor),
        }
        if "figures" in wanted:
            body["figures"] = _figures(tensor)
        if "slice" in wanted:
            body["slice"] = _or_why(
                lambda: pictures.slice_of(tensor, request["dims"], request["index"])
            )
        if "image" in wanted:
            body["image"] = _or_why(lambda: pictures.image_of(tensor, request["index"]))
        if "rows" in wanted:
            body["rows"] = _or_why(lambda: pictures.rows_of(tensor, request["dim"]))
        if "history" in wanted:
            body["history"] = self._history(value)
        return body

    def _history(self, value: Any) -> dict[str, Any] | None:
        """The recorded numbers of the last steps, by name; None where nothing is recorded."""
        fact: Any = (
            self._recorder.of_layer(value, history=True)
            if is_module(value)
            else self._recorder.of_parameter(value, history=True)
        )
        return None if fact is None or fact.history is None else asdict(fact.history)

    def _inline(self, request: dict[str, Any]) -> dict[str, Any]:
        """The visible locals of a frame, each in a line, and where its function begins.

        What has no line without running code of the program is left out.
        """
        frame = debugger_values.frame_of(request["frameId"])
        rows: list[dict[str, Any]] = []
        for name, value in list(frame.f_locals.items()):
            if len(rows) == _MOST_INLINE:
                break
            text = self._view.text(value, None)
            if text is None:
                text = _plain_text(value)
            if text is not None and not name.startswith("__"):
                rows.append({"name": name, "text": text, "type": type(value).__name__})
        return {"values": rows, "firstLine": frame.f_code.co_firstlineno}

    def _memory(self, request: dict[str, Any]) -> dict[str, Any]:
        reference = str(request["memoryReference"])
        prefix, _, count = reference.partition(":")
        tensor = self._view.shown(int(count)) if prefix == "tensorpoint" else None
        if tensor is None:
            raise Refused(f"memory {reference} is not known: the program has gone on since")
        try:
            return memory.read_memory(tensor, request["offset"], request["count"])
        except ValueError as error:
            raise Refused(str(error)) from None

    def _data(self, request: dict[str, Any]) -> dict[str, Any]:
        """What a data breakpoint would be set on: its id and its name."""
        reference, frame = request["variablesReference"], request["frameId"]
        if reference:
            owners = self._view.known.owners
            return self._target(lookup.find_row(reference, request["name"], owners))
        place = debugger_values.frame_of(frame) if frame else None
        return self.watchable(place, place, request["name"])

    def watchable(self, place: Any, frame: FrameType | None, text: str) -> dict[str, Any]:
        """The same of an expression, where `place` says what names mean. Raises NotWatchable."""
        owners = self._view.known.owners
        owners.look_from(frame)
        return self._target(lookup.find_expression(text, place, owners))

    def _target(self, target: Target) -> dict[str, Any]:
        return {"data": self._targets.add(target), "name": target.name, "kind": target.kind}


def _or_why(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A picture, or why there is none: one that can't be made is no reason to show nothing."""
    try:
        return make()
    except NotPossible as error:
        return {"note": str(error)}


def _figures(tensor: Any) -> dict[str, Any]:
    found = figures.all_figures_of(tensor)
    if isinstance(found, Unavailable):
        return {"note": found.reason}
    body = {
        name: value if not isinstance(value, float) or math.isfinite(value) else None
        for name, value in asdict(found).items()
    }
    body["shares"] = figures.QUANTILES
    return body


def _size(size: Any) -> Any:
    return size if isinstance(size, int) else str(size)


def _plain_text(value: Any) -> str | None:
    """Numbers and strings; all else would run code of the program."""
    if value is None or type(value) in (bool, int, float, complex):
        return number(value)
    if type(value) is str:
        text = repr(value[:_LONGEST])
        return text if len(value) <= _LONGEST else f"{text}..."
    if type(value) in (list, tuple, dict, set):
        return f"{type(value).__name__} of {len(value)}"
    return None
