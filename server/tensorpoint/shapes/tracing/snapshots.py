"""What is remembered of a value: dtype and sizes of tensors, integers, and containers of these.

Snapshots are plain tuples, so that a run of some thousands of them costs little and two are
compared by `==`: ("T", sizes, dtype), ("I", integer), ("S", kind, items), ("D", kind, keys, items),
with None for what has no shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...wire.dtypes import short_dtype

Snapshot = tuple[Any, ...]

_MOST_ITEMS = 64
_DEEPEST = 3


DTYPES = {
    short_dtype(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)
}


def snap(value: Any, depth: int = 0) -> Snapshot | None:
    """The snapshot of a value; None if it holds neither tensor nor integer."""
    if isinstance(value, torch.Tensor):
        return ("T", tuple(value.shape), short_dtype(value.dtype))
    if type(value) is int or isinstance(value, torch.SymInt):
        return ("I", value)
    if depth >= _DEEPEST:
        return None
    if isinstance(value, (tuple, list)):
        if len(value) > _MOST_ITEMS:
            return None
        return _sequence(type(value).__name__, [snap(item, depth + 1) for item in value])
    if isinstance(value, dict) and len(value) <= _MOST_ITEMS:
        keys = tuple(key for key in value if isinstance(key, str))
        return _mapping(type(value).__name__, keys, [snap(value[key], depth + 1) for key in keys])
    held = _held(value)
    if held:
        return _sequence(type(value).__name__, [snap(item, depth + 1) for item in held])
    return None


def _sequence(kind: str, items: list[Snapshot | None]) -> Snapshot | None:
    return ("S", kind, tuple(items)) if any(items) else None


def _mapping(kind: str, keys: tuple[str, ...], items: list[Snapshot | None]) -> Snapshot | None:
    return (
        ("D", kind, keys, tuple(items)) if any(item and item[0] != "I" for item in items) else None
    )


def _held(value: Any) -> list[Any]:
    """The tensors of an object such as a cache of keys and values: its layers, or its fields."""
    if isinstance(value, (torch.nn.Module, type)):
        return []
    fields = getattr(value, "__dict__", None)
    if not isinstance(fields, dict) or type(value).__module__.split(".")[0] in (
        "builtins",
        "torch",
    ):
        return []
    layers = fields.get("layers")
    if isinstance(layers, list) and layers:
        return [
            [v for v in vars(layer).values() if isinstance(v, torch.Tensor)]
            for layer in layers
            if hasattr(layer, "__dict__")
        ][:_MOST_ITEMS]
    return [field for field in fields.values() if isinstance(field, torch.Tensor)]


def sizes_of(snapshot: Snapshot | None) -> tuple[int, ...]:
    """All integers of a snapshot, in order."""
    if snapshot is None:
        return ()
    if snapshot[0] == "T":
        return snapshot[1]
    if snapshot[0] == "I":
        return (snapshot[1],)
    return tuple(size for item in snapshot[-1] for size in sizes_of(item))


def form_of(snapshot: Snapshot | None) -> Any:
    """The snapshot without its integers: two that differ here can't be fitted together."""
    if snapshot is None:
        return None
    if snapshot[0] == "T":
        return ("T", len(snapshot[1]), snapshot[2])
    if snapshot[0] == "I":
        return "I"
    return (*snapshot[:-1], tuple(form_of(item) for item in snapshot[-1]))


def has_tensor(snapshot: Snapshot | None) -> bool:
    """Whether there is a tensor in it."""
    if snapshot is None or snapshot[0] == "I":
        return False
    return snapshot[0] == "T" or any(has_tensor(item) for item in snapshot[-1])


def kinds_of(snapshot: Snapshot | None) -> set[str]:
    """The names of the classes of its containers."""
    if snapshot is None or snapshot[0] in ("T", "I"):
        return set()
    return {snapshot[1]}.union(*map(kinds_of, snapshot[-1]))


def render(snapshot: Snapshot | None, size: Callable[[], str]) -> str:
    """The snapshot as text; `size` gives the text of each of its integers in turn."""
    if snapshot is None:
        return "…"
    if snapshot[0] == "T":
        return f"{snapshot[2]}[{', '.join(size() for _ in snapshot[1])}]"
    if snapshot[0] == "I":
        return size()
    if snapshot[0] == "D":
        pairs = [f"{key}: {render(item, size)}" for key, item in zip(snapshot[2], snapshot[3])]
        inside = ", ".join(pair for pair, item in zip(pairs, snapshot[3]) if item)
        return (
            f"{{{inside}}}"
            if snapshot[1] in ("dict", "OrderedDict")
            else f"{snapshot[1]}({inside})"
        )
    texts = [render(item, size) for item in snapshot[2]]
    inside = _repeats(texts)
    if snapshot[1] in ("tuple", "Size"):
        return f"({inside},)" if len(texts) == 1 else f"({inside})"
    return f"[{inside}]" if snapshot[1] == "list" else f"{snapshot[1]}({inside})"


def _repeats(texts: list[str]) -> str:
    """Equal neighbours once: twelve pairs of keys and values are `(...) ×12`."""
    groups: list[tuple[str, int]] = []
    for text in texts:
        if groups and groups[-1][0] == text and text != "…":
            groups[-1] = (text, groups[-1][1] + 1)
        else:
            groups.append((text, 1))
    return ", ".join(
        f"{text} ×{count}" if count > 2 else ", ".join([text] * count) for text, count in groups
    )
