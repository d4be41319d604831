"""Products of matrices and convolutions: the terms of one element, and sums beyond the limit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from ..ops.cause import Cause
from ..ops.operation import Operation
from .element import Element
from .overflow import beyond, too_large
from .rule import DOCS, IEEE, Rule
from .values import exact
from .words import count, number, place

if TYPE_CHECKING:
    import torch

#: The two factors of a product, and what is added to it.
FACTORS: dict[str, tuple[str, str, str | None]] = {
    "addmm": ("mat1", "mat2", "self"),
    "addmv": ("mat", "vec", "self"),
    "baddbmm": ("batch1", "batch2", "self"),
    "bmm": ("self", "mat2", None),
    "dot": ("self", "tensor", None),
    "linear": ("input", "weight", "bias"),
    "matmul": ("self", "other", None),
    "mm": ("self", "mat2", None),
    "mv": ("self", "vec", None),
    "vdot": ("self", "other", None),
}
_CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d", "convolution"})
#: Elements of one sample up to which a convolution is computed again.
_MOST_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class Terms:
    """A row and a column, in float64, of which the element is the product."""

    left: torch.Tensor
    right: torch.Tensor
    #: What is added, scaled.
    added: float
    scale: float
    #: "x at [1, :] times w at [:, 0]".
    where: str


def terms_of(at: Element) -> Terms | None:
    """What was multiplied and added up to this element."""
    first, second, third = FACTORS[at.name]
    a, b = at.tensor(first), at.tensor(second)
    if a is None or b is None or not a.dim() or not b.dim():
        return None
    rest = list(at.index)
    j = [rest.pop()] if b.dim() > 1 and rest else []
    i = [rest.pop()] if a.dim() > 1 and rest else []
    is_linear = at.name == "linear"
    row = [*_batch(rest, a), *i, slice(None)]
    column = [*j, slice(None)] if is_linear else [*_batch(rest, b), slice(None), *j]
    if len(row) != a.dim() or len(column) != b.dim():
        return None
    left, right = a[tuple(row)], b[tuple(column)]
    if left.shape != right.shape:
        return None
    added = None if third is None else at.operand(third)
    where = " times ".join(
        at.called(name) + place([":" if isinstance(item, slice) else item for item in index])
        for name, index in ((first, row), (second, column))
    )
    return Terms(
        exact(left),
        exact(right),
        0.0 if added is None else added * _factor(at, "beta"),
        _factor(at, "alpha"),
        where,
    )


def _batch(index: Sequence[int], factor: torch.Tensor) -> list[Any]:
    """The index of a factor's matrix, by broadcasting."""
    sizes = factor.shape[:-2]
    last = index[len(index) - len(sizes) :] if sizes else ()
    return [0 if size == 1 else item for size, item in zip(sizes, last, strict=False)]


def _factor(at: Element, name: str) -> float:
    value = at.operand(name)
    return 1.0 if value is None else value


def _overflow(operation: Operation, at: Element) -> Cause | None:
    """A sum of products beyond the limit of the type."""
    terms = terms_of(at)
    if terms is None or not at.is_infinite:
        return None
    products = terms.left * terms.right * terms.scale
    total = float(products.sum()) + terms.added
    what = f"The sum of {count(len(products), 'product')}, {terms.where},"
    if isfinite(total) and abs(total) > at.limit:
        largest = float(products[products.abs().argmax()])
        return too_large(
            at, f"{what} is {beyond(at, total)}; the largest of them is {number(largest)}."
        )
    partial = float(products.cumsum(0).abs().max()) if len(products) else 0.0
    if isfinite(total) and partial > at.limit:
        return too_large(
            at,
            f"{what} is {number(total)}, but on the way there it gets to {beyond(at, partial)}.",
        )
    return None


def _indefinite(operation: Operation, at: Element) -> Cause | None:
    """A product of matrices of which one holds an infinity."""
    terms = terms_of(at)
    if terms is None or not at.is_nan:
        return None
    if bool(terms.left.isnan().any()) or bool(terms.right.isnan().any()):
        return None
    products = terms.left * terms.right
    nan = products.isnan()
    if bool(nan.any()):
        k = int(nan.byte().argmax())
        factors = f"{number(float(terms.left[k]))}·{number(float(terms.right[k]))}"
        return Cause(
            f"0·inf is NaN: term {k} of {terms.where} is {factors}.",
            "A weight of 0 does not remove an infinity in what it weighs: replace it before the "
            "product, such as with masked_fill.",
        )
    up, down = int((products == inf).sum()), int((products == -inf).sum())
    if up and down:
        return Cause(
            f"inf - inf is NaN: of the terms of {terms.where}, {up} {_are(up)} inf and {down} "
            f"{_are(down)} -inf.",
            "Look for where the operands became infinite.",
        )
    return None


def _are(amount: int) -> str:
    return "is" if amount == 1 else "are"


def _convolution(operation: Operation, at: Element) -> Cause | None:
    """A window of a convolution beyond the limit of the type."""
    found = _window_sum(at)
    if found is None or not at.is_infinite or not isfinite(found) or abs(found) <= at.limit:
        return None
    return too_large(
        at,
        f"The convolution of {at.called('input')} with {at.called('weight')} is "
        f"{beyond(at, found)},{at.at}.",
    )


def _window_sum(at: Element) -> float | None:
    """The element in float64: one sample and one output channel are convolved again."""
    source, weight = at.tensor("input"), at.tensor("weight")
    if source is None or weight is None or source.dim() != weight.dim():
        return None
    if isinstance(at.argument("padding"), str) or at.argument("transposed"):
        return None
    groups, spatial = at.argument("groups") or 1, source.dim() - 2
    if spatial < 1 or source[:1].numel() > _MOST_ELEMENTS or len(at.index) != source.dim():
        return None  # among them one sample without a batch
    sample, channel, *window = at.index
    group, width = channel // (len(weight) // groups), weight.shape[1]
    bias = at.tensor("bias")
    summed = sys.modules["torch"].convolution(
        exact(source[sample : sample + 1, group * width : (group + 1) * width]),
        exact(weight[channel : channel + 1]),
        None if bias is None else exact(bias[channel : channel + 1]),
        *(_sizes(at.argument(name), default, spatial) for name, default in _SHAPE),
        False,
        [0] * spatial,
        1,
    )
    return float(summed[(0, 0, *window)])


_SHAPE = (("stride", 1), ("padding", 0), ("dilation", 1))


def _sizes(value: Any, default: int, spatial: int) -> list[int]:
    sizes = [default] if value is None else [value] if isinstance(value, int) else list(value)
    return sizes * spatial if len(sizes) == 1 else sizes


RULES = (
    Rule(
        "overflow of a matrix product",
        frozenset(FACTORS),
        _overflow,
        "transformers#5651",
    ),
    Rule("0·inf in a matrix product", frozenset(FACTORS), _indefinite, IEEE),
    Rule("overflow of a convolution", _CONVOLUTIONS, _convolution, DOCS + "nn.Conv2d.html"),
)
