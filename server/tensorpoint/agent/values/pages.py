"""The elements of a tensor, a page at a time, nested by dimension.

A page is read with one copy of at most `_PAGE` numbers; nothing is read beyond it. For clients that
know no pages a long dimension is cut into ranges that open on their own.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

from ...wire.dtypes import short_dtype
from ..tensors import unseen
from . import devices
from .assign import set_element
from .devices import Unavailable
from .nodes import ALL, Child, Node, Page, leaf
from .plain import (
    NO_VALUES,
    element,
    is_on_cpu,
    is_tensor,
    plain,
    read,
    shape_of,
    why_hollow,
)

#: Rows without a request for a page, and the longest page that is read.
_PAGE = 100
_MOST = 1000
#: Numbers of a row that are shown in its line.
_PREVIEW = 6


@unseen
def values_node(tensor: Any) -> Node:
    """The row that opens to the elements."""
    reason = _why_not(tensor)
    if reason is not None:
        return leaf(reason)
    owner, tensor = tensor, plain(tensor)
    shape = shape_of(tensor)
    return _row(tensor, owner, [], 0, shape[0]) if shape else _number_node(tensor)


def _why_not(tensor: Any) -> str | None:
    torch = sys.modules["torch"]
    if torch._C._functorch.maybe_current_level() is not None:
        return "the program is in a function transform"
    hollow = why_hollow(tensor)
    if hollow is not None:
        return hollow
    if read(tensor, "is_meta"):
        return NO_VALUES
    if read(tensor, "is_nested"):
        return "the elements of a nested tensor are not listed"
    layout = read(tensor, "layout")
    if layout is not torch.strided:
        return f"the elements of a {layout} tensor are not listed"
    return devices.why_not(tensor)


def _number_node(tensor: Any) -> Node:
    found = _page_of(tensor, [], 0, 1)
    return leaf(found.reason if isinstance(found, Unavailable) else element(found[0]))


def _row(tensor: Any, owner: Any, index: list[int], start: int, stop: int) -> Node:
    """The elements from `start` to `stop` of the dimension that `index` leads to.

    `tensor` is a plain view of `owner`, the program's.
    """
    shape = tuple(tensor.shape)[len(index) :]
    count = stop - start

    def children(page: Page) -> Sequence[Child]:
        if page.filter == "named":
            return []
        if page is ALL or not page.count:
            if count > _PAGE:
                return _ranges(tensor, owner, index, start, stop)
            return _elements(tensor, owner, index, start, stop)
        part = _part(page, start, stop)
        return _elements(tensor, owner, index, part.start, part.stop)

    def assign(name: str, value: Any, expression: str) -> str:
        position = int(name.strip("[]"))
        return set_element(owner, (*index, position), value, expression)

    text = f"[{', '.join(str(size) for size in (count, *shape[1:]))}]"
    if len(shape) == 1 and is_on_cpu(tensor):
        text = _preview(tensor, index, start, stop)
    kind = short_dtype(tensor.dtype)
    sets = assign if len(shape) == 1 else None
    return Node(text, kind, children, indexed=count, first=start, assign=sets)


def _part(page: Page, start: int, stop: int) -> range:
    """What a page is of the numbers from `start` to `stop`; nothing outside of them."""
    first = min(start + max(page.start, 0), stop)
    return range(first, min(first + max(0, min(page.count, _MOST)), stop))


def _ranges(tensor: Any, owner: Any, index: list[int], start: int, stop: int) -> list[Child]:
    """The rows for a client that asks for all at once: some hundred at most, each a range."""
    step = _PAGE
    while (stop - start) / step > _PAGE:
        step *= _PAGE
    edges = range(start, stop, step)
    return [
        Child(
            f"[{at}..{min(at + step, stop) - 1}]",
            _row(tensor, owner, index, at, min(at + step, stop)),
            "",
        )
        for at in edges
    ]


@unseen
def _elements(tensor: Any, owner: Any, index: list[int], start: int, stop: int) -> list[Child]:
    positions = range(start, stop)
    if tensor.dim() - len(index) > 1:
        size = int(tensor.shape[len(index) + 1])
        return [
            Child(f"[{at}]", _row(tensor, owner, [*index, at], 0, size), f"[{at}]")
            for at in positions
        ]
    found = _page_of(tensor, index, start, stop)
    if isinstance(found, Unavailable):
        return [Child("values", leaf(found.reason))]
    return [
        Child(
            f"[{at}]", Node(element(value), short_dtype(tensor.dtype), can_be_set=True), f"[{at}]"
        )
        for at, value in zip(positions, found, strict=True)
    ]


def _preview(tensor: Any, index: list[int], start: int, stop: int) -> str:
    found = _page_of(tensor, index, start, min(stop, start + _PREVIEW))
    if isinstance(found, Unavailable):
        return found.reason
    more = ", ..." if stop - start > _PREVIEW else ""
    return f"[{', '.join(element(value) for value in found)}{more}]"


@unseen
def _page_of(tensor: Any, index: list[int], start: int, stop: int) -> list[Any] | Unavailable:
    """The numbers of a page; with one copy from a device, for which it waits a while only."""

    def read_out() -> Any:
        part = tensor.detach()
        for position in index:
            part = part.select(0, position)
        if part.dim():
            part = part[start:stop]
        part = part.reshape(-1)
        if part.is_quantized:
            part = part.dequantize()
        if part.element_size() == 1 and part.dtype.is_floating_point:
            part = part.float()  # float8 has no arithmetic of its own
        return part.resolve_conj() if part.is_conj() else part

    try:
        return devices.run(tensor, read_out)
    except RuntimeError as error:  # bits that torch gives no number to
        return Unavailable.because(error)


def sequence_node(values: Any) -> Node:
    """A long list or tuple of the program's, by pages."""

    def children(page: Page) -> Sequence[Child]:
        if page.filter == "named":
            return []
        if page is ALL or not page.count:
            return _slices(values, 0, len(values))
        part = _part(page, 0, len(values))
        return _items(values, part.start, part.stop)

    return Node(f"{type(values).__name__} of {len(values):,}", "", children, indexed=len(values))


def _slices(values: Any, start: int, stop: int) -> list[Child]:
    if stop - start <= _PAGE:
        return _items(values, start, stop)
    step = _PAGE
    while (stop - start) / step > _PAGE:
        step *= _PAGE
    rows: list[Child] = []
    for at in range(start, stop, step):
        end = min(at + step, stop)

        def children(_: Page, at: int = at, end: int = end) -> Sequence[Child]:
            return _slices(values, at, end)

        rows.append(Child(f"[{at}..{end - 1}]", Node(f"{end - at:,} items", "", children), ""))
    return rows


def _items(values: Any, start: int, stop: int) -> list[Child]:
    return [Child(f"[{at}]", values[at], f"[{at}]") for at in range(start, min(stop, len(values)))]


def is_long(values: Any) -> bool:
    """Whether it is a plain list or tuple that is told by pages: one that holds many values."""
    return type(values) in (list, tuple) and len(values) > _PAGE


def as_tensor(value: Any) -> Any:
    """A tensor over the memory of `value`, which may be numpy's; None where there is none."""
    if is_tensor(value):
        return value
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "from_numpy"):
        return None
    try:
        base = sys.modules["numpy"].ndarray
        if type(value).__name__ == "MaskedArray":  # what is masked counts for nothing
            return None
        with warnings.catch_warnings():  # of arrays that must not be written; nothing is, here
            warnings.simplefilter("ignore")
            return torch.from_numpy(base.view(value, base))
    except (TypeError, ValueError, RuntimeError):  # strings, objects, negative strides
        return None
