"""Tells Tensorpoint of `attend`. Nothing of Tensorpoint is imported: names are all that matters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def after_attend(
    observer: Any, result: Any, query: Any, key: Any, value: Any, temperature: float = 10.0
) -> None:
    """The same scores as a product of queries and keys, with the heads in front."""
    query, key = (
        (tensor.detach() / tensor.detach().norm(dim=-1, keepdim=True)).transpose(1, 2)
        for tensor in (query, key)
    )
    observer.attention(query, key, scale=temperature)


adapter = SimpleNamespace(
    name="cosine-attention",
    taps=(
        SimpleNamespace(target="cosine_attention:attend", topic="attention", after=after_attend),
    ),
)
