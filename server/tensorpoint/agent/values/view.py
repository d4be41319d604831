"""The view of values as a whole: what a row says, what is below it, and what is known of it.

One per process. All of it runs on the thread that stands still, or on pydevd's command thread while
all stand still.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from types import FrameType
from typing import Any

from .. import debugger_files
from . import devices, reprs
from .cache import Cache
from .children import Children
from .kinds import is_array, is_storage, kind_of
from .known import Known
from .nodes import Child, Page, is_node
from .origin import assigned, definition
from .pages import is_long
from .plain import is_hollow, is_module, is_parameter, is_tensor, read
from .summary import Summaries
from .walks import TABLES, modules_in, tensors_of

#: Tensors that are looked at for those with the same memory.
_NEIGHBOURS = 2000


class View:
    """What an editor shows of the values that are ours."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.cache = Cache()
        #: Tensors by the number in their memory reference, and the numbers by identity.
        self._shown: dict[int, weakref.ref[Any]] = {}
        self._numbers: dict[int, int] = {}
        self._next = itertools.count(1)
        self._summaries = Summaries(known, self.cache)
        self._children = Children(known)

    def changed(self) -> None:
        """Something was run, or goes on running: what was measured and indexed counts no more."""
        self.cache.clear()
        self.known.owners.clear()

    def forget(self) -> None:
        """The program goes on: keep nothing of it."""
        self.changed()
        self._shown.clear()
        self._numbers.clear()
        devices.forget()

    def _number(self, tensor: Any) -> int:
        known = self._numbers.get(id(tensor))
        if known is None or self.shown(known) is not tensor:
            known = self._numbers[id(tensor)] = next(self._next)
            self._shown[known] = weakref.ref(tensor)
        return known

    def shown(self, number: int) -> Any:
        """The tensor of a memory reference; None if it is gone or the program has gone on."""
        reference = self._shown.get(number)
        return None if reference is None else reference()

    def text(self, value: Any, context: str | None) -> str | None:
        """The row's text; None for what is left to pydevd, and to torch's own repr."""
        if is_node(value):
            return value.text
        if is_storage(value):  # its own repr lists every element
            return self._summaries.short(value)
        if context in ("repl", "clipboard"):
            return self._summaries.without_memory(value)
        if is_long(value):
            return _length(value)
        if context in ("hover", "watch"):
            return self._summaries.full(value)
        return self._summaries.short(value)

    def inner_text(self, value: Any) -> str | None:
        """The text of a value within another one's."""
        return self._summaries.short(value)

    def reprs(self, *, in_short: bool) -> AbstractContextManager[Any]:
        """How the `repr` of other values writes the tensors in it meanwhile."""
        return reprs.in_short() if in_short else reprs.bounded()

    def children(self, value: Any, page: Page, frame: FrameType | None) -> list[Child] | None:
        """What is below a row; None for what is left to pydevd."""
        self.known.owners.look_from(frame)
        neighbours = list(_tensors_at(frame)) if is_tensor(value) else []
        found = self._children.of(value, page, frame, neighbours)
        return None if found is None else list(found)

    def hint(self, value: Any, name: str, frame: FrameType | None) -> dict[str, Any]:
        """What else DAP says of a row: how many children, memory, and where it comes from."""
        if is_node(value):
            hint = {**value.more}
            if value.indexed:
                hint["indexedVariables"] = value.indexed
            return hint
        if is_long(value):
            return {"indexedVariables": len(value)}
        hint: dict[str, Any] = {}
        if is_tensor(value) or is_module(value) or is_array(value):
            hint["__vscodeVariableMenuContext"] = "tensor"
        if not is_tensor(value):
            return hint
        if not is_hollow(value) and read(value, "device").type == "cuda":
            devices.notice(value)
        if _has_memory(value):
            hint["memoryReference"] = f"tensorpoint:{self._number(value)}"
        place = None if frame is None else assigned(frame, name)
        if place is not None:
            hint["valueLocationReference"] = [debugger_files.client_file(place[0]), place[1]]
        if is_parameter(value):
            self.known.owners.look_from(frame)
            defined = definition(value, self.known)
            if defined is not None:
                hint["declarationLocationReference"] = [
                    debugger_files.client_file(defined.file),
                    defined.line,
                ]
        return hint

    def is_container(self, value: Any) -> bool:
        """Whether there is something below it."""
        if is_node(value):
            return value.children is not None
        return not is_storage(value)

    def is_ours(self, value: Any) -> bool:
        """Whether it is shown by us."""
        return is_node(value) or is_long(value) or kind_of(value) is not None


def _length(values: Any) -> str:
    return f"{type(values).__name__} of {len(values):,}"


def _has_memory(tensor: Any) -> bool:
    return not is_hollow(tensor) and read(tensor, "device").type in ("cpu", "cuda")


def _tensors_at(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Tensors that the frame sees: its locals, and what the modules among them hold."""
    if frame is None:
        return
    found = _neighbours(list(frame.f_locals.items()))
    yield from islice(found, _NEIGHBOURS)


def _neighbours(values: Sequence[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, value in values:
        if is_tensor(value):
            yield name, value
    for name, root in values:
        if is_module(root):
            for path, module in modules_in(root):
                for key, value in tensors_of(module, *TABLES):
                    yield ".".join(filter(None, (name, path, key))), value
