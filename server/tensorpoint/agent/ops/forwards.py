"""The operations of a forward, by the number that autograd gave the node of each.

A node of a backward pass says neither which operation it belongs to nor which line called that. Its
number does: it was taken just before the operation ran. Noting one is as light as possible; what a
stop says of it is made when it is asked for.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from .dispatch import named, outputs_of, storage_of
from .operation import Line, Operation
from .stack import CallSite


@dataclass(frozen=True)
class Behind:
    """The node of an earlier backward pass, of which a differentiable operation is part."""

    number: int
    name: str


@dataclass(frozen=True, eq=False)
class _Note:
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    site: CallSite
    behind: Behind | None

    @property
    def lines(self) -> tuple[Line, ...]:
        code = self.site.code
        if code is None:
            return ()
        return (Line(code.co_filename, self.site.line, code.co_name),)


@dataclass(frozen=True)
class Limits:
    """How many bytes are kept: of one tensor, and of all together, each counted where it is used.

    Beyond the second the oldest operations lose theirs: a backward comes to the newest first. Of
    more than so many operations the oldest are forgotten.
    """

    one: int
    all: int
    operations: int = 20_000


class Forwards:
    """Keeps the operations from the node `first` on, with their tensors as far as `limits` go."""

    def __init__(self, first: int = 0, limits: Limits | None = None) -> None:
        self._first = first
        self._limits = limits
        self._notes: dict[int, _Note] = {}
        #: By the number of each operation with tensors, oldest first, and what they add up to.
        self._sizes: deque[tuple[int, int]] = deque()
        self._size = 0

    def note(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        frame: FrameType,
        node: Any,
    ) -> None:
        """An operation has run, as part of `node` if a backward pass runs."""
        # What runs without a node of its own has the number of the one before: the first is it.
        number = sequence_number() - 1
        if number in self._notes or number < self._first:
            return
        size = 0
        if self._limits is not None:
            args, kwargs, result, size = _within(self._limits.one, args, kwargs, result)
        behind = None if node is None else Behind(node._sequence_nr(), node.name())
        site = CallSite.behind(frame)
        self._notes[number] = _Note(func, args, kwargs, result, site, behind)
        if self._limits is not None and len(self._notes) > self._limits.operations:
            self._drop(next(iter(self._notes)))
        if size:
            self._sizes.append((number, size))
            self._size += size
            self._shrink()

    def _drop(self, oldest: int) -> None:
        del self._notes[oldest]
        if self._sizes and self._sizes[0][0] == oldest:
            self._size -= self._sizes.popleft()[1]

    def _shrink(self) -> None:
        while self._limits is not None and self._size > self._limits.all:
            number, size = self._sizes.popleft()
            self._size -= size
            self._notes[number] = replace(self._notes[number], args=(), kwargs={}, result=None)

    def forget_before(self, number: int) -> None:
        """Keep nothing older."""
        self._notes = {key: note for key, note in self._notes.items() if key >= number}
        while self._sizes and self._sizes[0][0] < number:
            self._size -= self._sizes.popleft()[1]

    def forget(self, numbers: Iterable[int]) -> None:
        """Keep nothing of these nodes."""
        gone = {number for number in numbers if self._notes.pop(number, None) is not None}
        self._size -= sum(size for number, size in self._sizes if number in gone)
        self._sizes = deque(item for item in self._sizes if item[0] not in gone)

    def lines(self, number: int) -> tuple[Line, ...]:
        """Where the program called the operation of this node; empty if that isn't known."""
        note = self._notes.get(number)
        if note is None or note.behind is None:
            return () if note is None else note.lines
        return self.lines(note.behind.number)

    def behind(self, number: int) -> Behind | None:
        """The node whose forward made the operation of this one, through earlier backwards."""
        note = self._notes.get(number)
        if note is None or note.behind is None:
            return None
        return self.behind(note.behind.number) or note.behind

    def operation(self, node: Any) -> Operation | None:
        """The operation of this node; None for a function of Python's: those in it are many."""
        return None if hasattr(type(node), "_forward_cls") else self.numbered(node._sequence_nr())

    def numbered(self, number: int) -> Operation | None:
        """The operation of the node of this number."""
        note = self._notes.get(number)
        if note is None:
            return None
        arguments = named(note.func, note.args, note.kwargs)
        return Operation(
            name=note.func.overloadpacket.__name__,
            full_name=str(note.func),
            arguments=arguments.by_name,
            outputs=tuple(outputs_of(note.result, arguments)),
            lines=self.lines(number),
            names=note.site.names(arguments.tensors),
        )

    def made(self, tensor: Any) -> tuple[str, Line] | None:
        """The operation that made `tensor`, and its line; None if unknown."""
        node = tensor.grad_fn
        note = None if node is None else self._notes.get(node._sequence_nr())
        if note is None or not note.lines:
            return None
        # A node of before the recording has the number of what ran without one after it.
        memory = storage_of(tensor)
        arguments = named(note.func, note.args, note.kwargs)
        if not any(storage_of(output) == memory for output in outputs_of(note.result, arguments)):
            return None
        return note.func.overloadpacket.__name__, note.lines[0]


def _within(
    most: int, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> tuple[tuple[Any, ...], dict[str, Any], Any, int]:
    """The same without tensors of more than `most` bytes, and how many bytes the others have."""
    tensor, total = sys.modules["torch"].Tensor, 0

    def small(value: Any) -> Any:
        nonlocal total
        if isinstance(value, tensor):
            size = value.numel() * value.element_size()  # (sparse tensors know no `nbytes`)
            if size > most:
                return None
            total += size
        elif isinstance(value, (list, tuple)):
            return tuple(map(small, value))
        return value

    kept = tuple(map(small, args)), {name: small(value) for name, value in kwargs.items()}
    return *kept, small(result), total


def sequence_number() -> int:
    """The number that autograd gives its next node on this thread."""
    return sys.modules["torch"].autograd._get_sequence_nr()
