"""The attention map of a module: the weights of one head, as a slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..attention_maps import AttentionMaps
from ..likeness import looks_like_attention
from . import pictures
from .pictures import NotPossible
from .walks import modules_in


def attending_in(root: Any) -> list[tuple[str, Any]]:
    """The modules in `root`, itself included, that attend, by name; of nested ones the inner."""
    found = [(name, module) for name, module in modules_in(root) if looks_like_attention(module)]
    known = {id(module) for _, module in found}
    return [
        (name, module)
        for name, module in found
        if not any(path and id(below) in known for path, below in modules_in(module))
    ]


def map_of(
    attends: Sequence[tuple[str, Any]], index: Sequence[int], maps: AttentionMaps
) -> dict[str, Any]:
    """The weights of the head that `index` says. Raises NotPossible."""
    if len(attends) > 1:
        names = ", ".join(name for name, _ in attends[:3])
        raise NotPossible(f"{len(attends)} modules in it attend: view one of {names}, ...")
    found = maps.of(attends[0][1])
    if found is None:
        raise NotPossible(
            "its weights are kept from its next call on: let the program go on to the next stop"
        )
    body = pictures.slice_of(found.weights, (1, 2), index)
    rows, columns = body["step"]
    return {
        **body,
        "heads": int(found.weights.shape[0]),
        "size": [found.queries, body["size"][1]],
        "step": [rows * found.step, columns],
    }
