"""Attention as torch itself computes it: the fused function, and softmax inside an attention.

`softmax` covers what isn't fused: "eager" attention of transformers, attention written by hand, and
`nn.MultiheadAttention` when it has to return its weights. `torch.nn.functional.softmax` ends in
`Tensor.softmax`, so it needs no tap of its own.

In evaluation `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` take a fast path, one native
call for the whole layer in which no attention can be seen. It is switched off meanwhile; what the
layer returns stays the same but for rounding, and for rows of padding, which the fast path fills
with zeros.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .spec import Adapter, Observer, Switch, Tap

if TYPE_CHECKING:
    import torch


def after_attention(
    observer: Observer,
    result: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **others: Any,
) -> None:
    observer.attention(query, key, mask=attn_mask, is_causal=is_causal, scale=others.get("scale"))


def after_softmax(
    observer: Observer,
    result: torch.Tensor,
    input: torch.Tensor,
    dim: int | None = None,
    *others: Any,
    **more: Any,
) -> None:
    if not isinstance(result, sys.modules["torch"].Tensor):
        return  # a tracer's stand-in
    dims = result.dim()
    if dim not in (-1, dims - 1) or not 3 <= dims <= 5 or not observer.in_attention():
        return
    observer.attention_weights(result, scores=input)


def _mha() -> Any:
    return sys.modules["torch"].backends.mha


adapter = Adapter(
    "torch-attention",
    taps=(
        Tap("torch.nn.functional:scaled_dot_product_attention", "attention", after=after_attention),
        Tap("torch:softmax", "attention", after=after_softmax),
        Tap("torch:Tensor.softmax", "attention", after=after_softmax),
    ),
    switches=(
        Switch(
            "torch.backends.mha",
            "attention",
            False,
            read=lambda: _mha().get_fastpath_enabled(),
            write=lambda value: _mha().set_fastpath_enabled(value),
        ),
    ),
)
