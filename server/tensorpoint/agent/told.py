"""Attention as adapters tell it, brought into the form that the formulas need."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .attention import Scored, Weighted

if TYPE_CHECKING:
    import torch


def scored(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
    heads: int,
) -> Scored | None:
    """Attention of a module that says it has so many `heads`; None if it can't be looked at."""
    if not (_is_readable(query) and _is_readable(key)):
        return None
    if mask is not None and not _is_readable(mask, mask=True):
        return None
    if query.dim() != 4 or key.dim() != 4 or (mask is not None and mask.dim() != 4):
        folded = _folded(query, key, mask, heads)
        if folded is None:
            return None
        query, key, mask = folded
    fits = query.shape[-1] == key.shape[-1] and key.shape[1] and not query.shape[1] % key.shape[1]
    if not fits or not query.numel() or not key.numel():
        return None
    return Scored(query, key, mask, is_causal, scale)


def weighted(weights: torch.Tensor, scores: torch.Tensor | None, heads: int) -> Weighted | None:
    """The same, of weights."""
    if not _is_readable(weights) or not weights.numel():
        return None
    if scores is not None and not _is_readable(scores):
        scores = None
    if weights.dim() != 4:
        folded = _in_four(weights, heads)
        if folded is None:
            return None
        weights, scores = folded, None if scores is None else _in_four(scores, heads)
    return Weighted(weights, scores)


def is_number(value: Any) -> bool:
    """Whether `value` is one here and now, as a number or as a tensor."""
    return not isinstance(value, sys.modules["torch"].Tensor) or _is_readable(value)


def _is_readable(tensor: Any, mask: bool = False) -> bool:
    """Whether it has numbers here and now: a plain tensor, outside of transforms and captures."""
    torch = sys.modules["torch"]
    if not isinstance(tensor, torch.Tensor):
        return False
    kind = type(tensor)
    if kind is not torch.Tensor and (
        kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        or kind.__torch_function__ is not torch.Tensor.__torch_function__
    ):
        return False
    if torch._C._functorch.maybe_current_level() is not None or torch._C._get_tracing_state():
        return False
    if tensor.is_meta or tensor.is_nested or tensor.layout is not torch.strided:
        return False
    if not tensor.is_floating_point() and not (mask and tensor.dtype is torch.bool):
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _in_four(tensor: torch.Tensor, heads: int) -> torch.Tensor | None:
    """`tensor` as (B, H, T, ...); of three dimensions the first holds the heads, if it can."""
    tensor = tensor.detach()
    if tensor.dim() == 3:
        return tensor.unflatten(0, (-1, heads if len(tensor) % heads == 0 else 1))
    return tensor.flatten(0, -4) if tensor.dim() > 4 else None


def _folded(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, heads: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None:
    """Queries, keys and a mask in four dimensions; None if they don't fit each other."""
    if query.dim() == 3 and key.shape[0] != query.shape[0]:
        return None
    if query.dim() > 4 and key.shape[:-3] != query.shape[:-3]:
        return None
    queries, keys = _in_four(query, heads), _in_four(key, heads)
    if query.dim() == 4:
        queries, keys = query, key
    if queries is None or keys is None:
        return None
    if mask is not None:
        mask = mask.detach()
        if mask.dim() <= 2:
            mask = mask[(None,) * (4 - mask.dim())]
        elif mask.dim() == 3 and query.dim() == 4:
            mask = mask[None]
        elif mask.dim() == 3:
            mask = mask[None] if len(mask) == 1 else mask.unflatten(0, (-1, queries.shape[1]))
        elif mask.dim() > 4 or query.dim() > 4:
            lead = (*query.shape[:-3], *mask.shape[-3:])
            mask = mask.expand(lead).flatten(0, -4)
    return queries, keys, mask
