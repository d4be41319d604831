"""Masks of -inf: rows that are masked as a whole, masks added up past the limit of the type."""

from __future__ import annotations

import sys
from math import inf, isfinite, prod
from typing import TYPE_CHECKING

from ..ops.cause import Cause
from ..ops.operation import Operation
from .element import Element
from .overflow import limit
from .rule import DOCS, Rule
from .values import exact
from .words import number, place

if TYPE_CHECKING:
    import torch

_SOFTMAX = frozenset({"_softmax", "_log_softmax", "softmax", "log_softmax"})
_ATTENTION = frozenset(
    {
        "_scaled_dot_product_attention_math",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_fused_attention_overrideable",
        "scaled_dot_product_attention",
    }
)
#: Of the limit, from which on a number looks like a mask.
_MASK = 0.25

_MASKED_ROW = (
    "Leave something in each row, or mask with torch.finfo(x.dtype).min in place of -inf and set "
    "the rows that are masked as a whole to 0 afterwards."
)


def _two_masks(operation: Operation, at: Element) -> Cause | None:
    """Two masks of large negative numbers, such as finfo.min, that are applied to one element."""
    x, y, border = at.operand("self"), at.operand("other"), -_MASK * at.limit
    if x is None or y is None or at.value != -inf or at.operand("alpha") not in (None, 1.0):
        return None
    if not (isfinite(x) and isfinite(y) and x <= border and y <= border):
        return None
    return Cause(
        f"Two masks add up to -inf, beyond -{limit(at)}: {at.facts('self', 'other')}.",
        "Combine masks before they are applied, as booleans or by torch.minimum, or use half of "
        "torch.finfo(x.dtype).min for each.",
    )


def _softmax(operation: Operation, at: Element) -> Cause | None:
    """A row that holds nothing but -inf, or +inf."""
    dim = operation.arguments.get("dim")
    if not at.is_nan or not isinstance(dim, int):
        return None
    row = at.along("self", dim)
    if row is None or bool(row.isnan().any()):
        return None
    where = at.called("self") + at.row_place(dim)
    if bool((row == -inf).all()):
        return Cause(
            f"The softmax of a row that is masked as a whole is NaN: {where} holds nothing but "
            f"-inf ({len(row)} of {len(row)}).",
            _MASKED_ROW,
        )
    infinite = int((row == inf).sum())
    if infinite:
        return Cause(
            f"The softmax of a row with +inf is NaN, since it subtracts the maximum: {where} holds "
            f"{infinite} of {len(row)}.",
            "Look for where the scores overflowed: scale before the product, (q / d ** 0.5) @ k, "
            "or compute them in float32.",
        )
    return None


def _masked_softmax(operation: Operation, at: Element) -> Cause | None:
    """torch's own softmax with a mask, in the fast path of transformer encoders."""
    mask, dim = at.tensor("mask"), operation.arguments.get("dim")
    if mask is None or not at.is_nan or mask.shape != operation.output.shape:
        return None
    dim = dim if isinstance(dim, int) else -1
    if not at.index or not bool(mask[at.row(dim)].all()):
        return None
    return Cause(
        "The softmax of a row that is masked as a whole is NaN: "
        f"{at.called('mask')}{at.row_place(dim)} is True throughout.",
        _MASKED_ROW,
    )


def _attention(operation: Operation, at: Element) -> Cause | None:
    """A query that may attend to nothing; torch before 2.5 made NaN of it."""
    name = at.first("attn_mask", "attn_bias")
    mask = None if name is None else at.tensor(name)
    scores = _row_of_mask(at, mask)
    if name is None or scores is None or not at.is_nan:
        return None
    row, index = scores
    kept = row if str(row.dtype) == "torch.bool" else row != -inf
    if not row.numel() or bool(kept.any()):
        return None
    return Cause(
        "Attention of a query that is masked as a whole is NaN: "
        f"{at.called(name)}{place([*index, ':'])} leaves it none of {row.numel()} keys.",
        f"{_MASKED_ROW} torch from 2.5 on returns 0 for it.",
    )


def _attention_scores(operation: Operation, at: Element) -> Cause | None:
    """A query and a key whose product is beyond the limit: softmax makes NaN of that."""
    torch = sys.modules["torch"]
    queries, keys = at.tensor("query"), at.tensor("key")
    if queries is None or keys is None or not at.is_nan or queries.dim() != keys.dim():
        return None
    if len(at.index) != queries.dim() or queries.dim() < 2 or queries.shape[:-3] != keys.shape[:-3]:
        return None
    *batch, i, _ = at.index
    row, column = (*batch, i), tuple(batch)
    if queries.dim() > 2:  # several heads of queries may share one of keys
        shared, rest = divmod(queries.shape[-3], keys.shape[-3])
        if rest:
            return None
        column = (*batch[:-1], batch[-1] // shared)
    scale = at.operand("scale")
    scale = queries.shape[-1] ** -0.5 if scale is None else scale
    scores = exact(keys[column]) @ exact(queries[row]) * scale
    # torch computes the scores of short types in float32
    border = torch.finfo(torch.float64 if queries.dtype == torch.float64 else torch.float32).max
    if not len(scores) or not bool(scores.isfinite().all()):
        return None
    k = int(scores.abs().argmax())
    if abs(float(scores[k])) <= border:
        return None
    return Cause(
        f"The score of a query and a key is {number(float(scores[k]))}, beyond {number(border)}: "
        f"{at.called('query')}{place([*row, ':'])} times {at.called('key')}"
        f"{place([*column, k, ':'])}.",
        "Normalise queries and keys before the product, such as by a norm layer.",
    )


def _gradient_of_nothing(operation: Operation, at: Element) -> Cause | None:
    """The gradient of logsumexp is exp(x - logsumexp(x)): -inf - -inf where all is masked."""
    if at.name != "sub" or at.operand("self") != -inf or at.operand("other") != -inf:
        return None
    return Cause(
        f"The gradient of logsumexp of a row that is masked as a whole is NaN{at.at}: the row "
        "holds nothing but -inf, and inf - inf is NaN.",
        _MASKED_ROW,
    )


def _row_of_mask(
    at: Element, mask: torch.Tensor | None
) -> tuple[torch.Tensor, tuple[int, ...]] | None:
    """The row of a mask that belongs to the query of the element, and its index."""
    if mask is None or mask.dim() < 2 or len(at.index) < mask.dim():
        return None
    query = at.index[len(at.index) - mask.dim() : -1]
    index = tuple(0 if size == 1 else place for size, place in zip(mask.shape, query))
    return (mask[index], index) if prod(mask.shape) else None


def _log_sum_exp(operation: Operation, at: Element) -> Cause | None:
    """The logarithm of a sum of nothing."""
    if at.value != -inf:
        return None
    if at.name.startswith("logaddexp"):
        x, y = at.operand("self"), at.operand("other")
        if x != -inf or y != -inf:
            return None
        what = f"The logarithm of a sum of 0 is -inf: {at.facts('self', 'other')}."
    else:
        found = at.reduced("self")
        if found is None or not bool((found[0] == -inf).all()):
            return None
        row, where = found
        held = f"holds nothing but -inf ({len(row)} of {len(row)})" if len(row) else "is empty"
        what = f"The logarithm of a sum of 0 is -inf: {at.called('self')}{where} {held}."
    return Cause(what, _MASKED_ROW)


RULES = (
    Rule("two masks add up", frozenset({"add"}), _two_masks, "pytorch#41508"),
    Rule("softmax of a masked row", _SOFTMAX, _softmax, "pytorch#41508"),
    Rule(
        "softmax of a masked row, fast path",
        frozenset({"_masked_softmax"}),
        _masked_softmax,
        "pytorch#41508",
    ),
    Rule("attention of a masked query", _ATTENTION, _attention, "pytorch#103749"),
    Rule(
        "overflow of attention scores",
        _ATTENTION,
        _attention_scores,
        DOCS + "nn.functional.scaled_dot_product_attention.html",
    ),
    Rule(
        "gradient of logsumexp of nothing",
        frozenset({"LogsumexpBackward"}),
        _gradient_of_nothing,
        "pytorch#31829",
    ),
    Rule(
        "logsumexp of nothing",
        frozenset({"logsumexp", "logaddexp", "logaddexp2"}),
        _log_sum_exp,
        "pytorch#31829",
    ),
)
