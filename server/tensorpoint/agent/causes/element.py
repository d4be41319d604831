"""The element that an operation made bad, and what its operands were there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any

from ..ops.operation import Operation
from .names import bare, is_of, node_kind, role
from .values import best_index, exact, fits, is_small, numbers_of
from .words import is_number, listed, number, place

if TYPE_CHECKING:
    import torch

#: Operations of which an element is made of more than the operands at its place.
_MIXING = frozenset({"addmm", "baddbmm", "bmm", "linear", "matmul", "mm"})
#: Operations that write into `self` without reading it.
_BLIND = frozenset({"copy", "fill"})
#: Operations that hand on the numbers of their argument.
PASSING = frozenset(
    {
        "_reshape_alias",
        "_to_copy",
        "_unsafe_view",
        "alias",
        "clone",
        "contiguous",
        "detach",
        "expand",
        "lift_fresh",
        "neg",
        "permute",
        "reshape",
        "select",
        "slice",
        "squeeze",
        "t",
        "to",
        "transpose",
        "unsqueeze",
        "view",
    }
)


@dataclass(frozen=True, eq=False)
class Element:
    """One element of an operation's output."""

    operation: Operation
    index: tuple[int, ...]
    value: float
    #: What the program calls the arguments.
    names: Mapping[str, str]
    #: What a gradient scaler multiplies gradients with, if it does.
    scale: float | None = None

    # The operation -------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The operation's name without what says that it is in place, or of a list."""
        return bare(self.operation.name)

    @property
    def node(self) -> str:
        """The backward node that ran it, without its number; empty in a forward."""
        return node_kind(self.operation.node or "")

    @property
    def dtype(self) -> str:
        """The type of the output: "float16"."""
        return str(self.operation.output.dtype).removeprefix("torch.")

    @property
    def limit(self) -> float:
        """The largest number of that type."""
        return float(sys.modules["torch"].finfo(self.operation.output.dtype).max)

    @property
    def rounding(self) -> str:
        """A remark on zeros in float16: they may have been small numbers."""
        return (
            " (float16 has nothing between 0 and 5.96e-08)"
            if any(str(tensor.dtype) == "torch.float16" for tensor in self._tensors())
            else ""
        )

    @property
    def is_backward(self) -> bool:
        return self.operation.phase == "backward"

    @property
    def is_nan(self) -> bool:
        return isnan(self.value)

    @property
    def is_infinite(self) -> bool:
        return not isfinite(self.value) and not isnan(self.value)

    # Its arguments -------------------------------------------------------------------------------

    def argument(self, name: str) -> Any:
        """An argument as it was given; of a list of an optimizer's the member that is meant."""
        return self.operation.meant_of(self.operation.arguments.get(name))

    def tensor(self, name: str) -> torch.Tensor | None:
        """An argument as plain real numbers, None if it is no such tensor."""
        return numbers_of(self.argument(name))

    def operand(self, name: str) -> float | None:
        """The value of an argument at this element, broadcast to it; None where there is none."""
        value = self.argument(name)
        if isinstance(value, (bool, int, float)):
            return float(value)
        tensor = numbers_of(value)
        index = None if tensor is None else self._index_in(tensor)
        return None if tensor is None or index is None else float(tensor[index].item())

    def index_of(self, name: str) -> tuple[int, ...] | None:
        """The index of an argument's element here, broadcast to it; None if it has none."""
        tensor = self.tensor(name)
        return None if tensor is None else self._index_in(tensor)

    def first(self, *names: str) -> str | None:
        """The first of these that is an argument of this call: overloads call them otherwise."""
        return next((name for name in names if self.argument(name) is not None), None)

    def _index_in(self, tensor: torch.Tensor) -> tuple[int, ...] | None:
        if tensor.dim() > len(self.index):
            return None
        shape = self.operation.output.shape
        ahead = len(self.index) - tensor.dim()
        index: list[int] = []
        for dim, size in enumerate(tensor.shape):
            if size not in (1, shape[ahead + dim]):
                return None
            index.append(0 if size == 1 else self.index[ahead + dim])
        return tuple(index)

    def _tensors(self) -> Iterator[torch.Tensor]:
        for name in self.operation.arguments:
            tensor = self.tensor(name)
            if tensor is not None:
                yield tensor

    # In words ------------------------------------------------------------------------------------

    def called(self, name: str) -> str:
        """What to call an argument: the program's expression, else its role."""
        return self.names.get(name) or role(self.operation.name, name)

    def fact(self, name: str) -> str:
        """ "x at [2, 5] is 0"; nothing for a number that stands in the source, or no operand."""
        value = self.operand(name)
        if value is None:
            return ""
        tensor, called = self.tensor(name), self.called(name)
        if tensor is None and is_number(called):
            return ""
        index = () if tensor is None else self._index_in(tensor) or ()
        return f"{called}{place(index)} is {number(value)}"

    def facts(self, *names: str) -> str:
        """The same of several: "x at [0] is inf and y at [0] is 0"."""
        return listed([self.fact(name) for name in names])

    @property
    def at(self) -> str:
        """Where the element is: " at [2, 5]"."""
        return place(self.index)

    # Around it -----------------------------------------------------------------------------------

    @property
    def forward(self) -> Element | None:
        """The same place in the operation whose backward this is, if known and of this shape."""
        operation, node = self.operation.forward, self.operation.node
        if operation is None or node is None or not is_of(node, operation.name):
            return None
        for position, output in enumerate(operation.outputs):
            values = numbers_of(output)
            if values is not None and values.shape == self.operation.output.shape:
                value = float(values[self.index].item())
                at = replace(operation, place=position)
                return Element(at, self.index, value, operation.names)
        return None

    def origin(self, name: str) -> Operation | None:
        """Who handed out the bad values of an argument, through views and the like."""
        source = self.operation.sources.get(name)
        while source is not None and bare(source.name) in PASSING and source.sources:
            source = next(iter(source.sources.values()))
        return source

    def root(self, name: str) -> Operation | None:
        """The first of the operations from which an argument is bad."""
        source = self.operation.sources.get(name)
        while source is not None and source.sources:
            source = next(iter(source.sources.values()))
        return source

    # Slices --------------------------------------------------------------------------------------

    def along(self, name: str, dim: int) -> torch.Tensor | None:
        """The row of an argument of the output's shape in which the element is."""
        tensor = self.tensor(name)
        if tensor is None or tensor.dim() == 0 or tensor.shape != self.operation.output.shape:
            return None
        return exact(tensor[self.row(dim)])

    def row(self, dim: int) -> tuple[Any, ...]:
        """The index of that row, with a slice at `dim`."""
        dim %= len(self.index)
        return (*self.index[:dim], slice(None), *self.index[dim + 1 :])

    def row_place(self, dim: int) -> str:
        """The same in words: " at [2, :]"."""
        return place([":" if isinstance(item, slice) else item for item in self.row(dim)])

    def reduced(self, name: str) -> tuple[torch.Tensor, str] | None:
        """The elements that were reduced to this one, and where they are: " at [2, :]"."""
        tensor = self.tensor(name)
        if tensor is None:
            return None
        index = _reduced_index(tensor, self.operation, self.index)
        if index is None or not is_small(tensor[index]):
            return None
        where = (
            ""
            if all(isinstance(item, slice) for item in index)
            else place([":" if isinstance(item, slice) else item for item in index])
        )
        return exact(tensor[index]).reshape(-1), where


def _reduced_index(
    tensor: torch.Tensor, operation: Operation, index: tuple[int, ...]
) -> tuple[Any, ...] | None:
    given = operation.arguments.get("dim")
    dims = [given] if isinstance(given, int) else list(given or range(tensor.dim()))
    dims = {dim % max(tensor.dim(), 1) for dim in dims}
    if len(index) == tensor.dim():  # keepdim, or nothing to reduce
        rest = iter([item for dim, item in enumerate(index) if dim not in dims])
    elif len(index) == tensor.dim() - len(dims):
        rest = iter(index)
    else:
        return None
    return tuple(slice(None) if dim in dims else next(rest) for dim in range(tensor.dim()))


# Finding it --------------------------------------------------------------------------------------


def find(operation: Operation, names: Mapping[str, str], scale: float | None) -> Element | None:
    """The element of the bad output that is to be explained; None if there is none to see."""
    if not operation.outputs:
        return Element(operation, (), float("nan"), names, scale)
    output = numbers_of(operation.output)
    if output is None or not output.is_floating_point() or output.numel() == 0:
        return None
    rough = Element(operation, (0,) * output.dim(), 0.0, names, scale)
    operands = list(_operands(rough))
    usable = all(fits(operand, output) for operand in operands) and rough.name not in _MIXING
    spoilt = not usable or _has_bad_number(operation)
    index = best_index(output, operands if usable else [], spoilt)
    return (
        None
        if index is None
        else Element(operation, index, float(output[index].item()), names, scale)
    )


def _operands(at: Element) -> Iterator[torch.Tensor]:
    for name in at.operation.arguments:
        if name == "out" or (name == "self" and at.name in _BLIND):
            continue
        tensor = at.tensor(name)
        if tensor is not None and tensor.is_floating_point():
            yield tensor


def _has_bad_number(operation: Operation) -> bool:
    return any(
        isinstance(value, float) and not isfinite(value) for value in operation.arguments.values()
    )
