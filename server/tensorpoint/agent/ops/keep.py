"""Putting objects back to what they were: attributes, lists, dictionaries, caches.

Tensors are held weakly while the program runs: a key-value cache that grows makes a new, longer
tensor at each step, and to hold the old one would double its memory. If it is gone by then, what
replaced it is cropped to the old length, as such caches do themselves.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

from .recorder import NotReplayable

_MAX_DEPTH = 5
_MAX_OBJECTS = 2048

#: Puts something back.
Undo = Callable[[], None]


def keep(value: object, *, strongly: bool = True) -> list[Undo]:
    """What puts the lists, dictionaries and objects in `value` back, innermost last.

    Tensors in them are put back as objects, not as numbers. Modules are left out.
    """
    return list(_keep(value, strongly, 0, set()))


def keep_attributes(owner: Any, *, strongly: bool = True) -> list[Undo]:
    """The same for the attributes of an object, also if it is a module."""
    return list(_keep_mapping(vars(owner), strongly, 0, {id(owner)}))


def holds_state(value: object) -> bool:
    """Whether a call that is given `value` could change it other than as a tensor."""
    return any(_state_in(value, 0))


def _state_in(value: object, depth: int) -> Iterator[bool]:
    if isinstance(value, tuple) and depth < _MAX_DEPTH:
        for item in cast("tuple[object, ...]", value):
            yield from _state_in(item, depth + 1)
    elif isinstance(value, (list, dict, set)):
        yield bool(value)
    else:
        yield _has_attributes(value)


def _has_attributes(value: object) -> bool:
    torch = sys.modules["torch"]
    plain = (torch.Tensor, torch.nn.Module, type)
    return hasattr(value, "__dict__") and not isinstance(value, plain) and not callable(value)


def _keep(value: object, strongly: bool, depth: int, seen: set[int]) -> Iterator[Undo]:
    if depth > _MAX_DEPTH or id(value) in seen or len(seen) > _MAX_OBJECTS:
        return
    if isinstance(value, (dict, list)) and len(cast("list[Any]", value)) > _MAX_OBJECTS:
        copy, values = value.copy(), cast("Any", value)  # data, not state: its items are let be
        yield lambda: _refill(values, copy)
    elif isinstance(value, dict):
        seen.add(id(value))
        yield from _keep_mapping(cast("dict[Any, Any]", value), strongly, depth, seen)
    elif isinstance(value, list):
        seen.add(id(value))
        yield from _keep_list(cast("list[Any]", value), strongly, depth, seen)
    elif isinstance(value, tuple):
        for item in cast("tuple[Any, ...]", value):
            yield from _keep(item, strongly, depth + 1, seen)
    elif _has_attributes(value):
        seen.add(id(value))
        yield from _keep_mapping(vars(value), strongly, depth, seen)


def _keep_mapping(
    mapping: dict[Any, Any], strongly: bool, depth: int, seen: set[int]
) -> Iterator[Undo]:
    was = {name: _held(item, strongly) for name, item in mapping.items()}

    def undo() -> None:
        for name, held in was.items():
            now = mapping.get(name, _MISSING)
            item = held(now)
            if item is not now:
                mapping[name] = item
        for name in mapping.keys() - was.keys():
            del mapping[name]

    yield undo
    for item in list(mapping.values()):
        yield from _keep(item, strongly, depth + 1, seen)


def _keep_list(values: list[Any], strongly: bool, depth: int, seen: set[int]) -> Iterator[Undo]:
    was = [_held(item, strongly) for item in values]

    def undo() -> None:
        now = [*values[: len(was)], *[None] * (len(was) - len(values))]
        values[:] = [held(item) for held, item in zip(was, now, strict=True)]

    yield undo
    for item in list(values):
        yield from _keep(item, strongly, depth + 1, seen)


def _refill(values: Any, copy: Any) -> None:
    if values != copy:
        values.clear()
        values.update(copy) if isinstance(values, dict) else values.extend(copy)


_MISSING = object()


def _held(item: Any, strongly: bool) -> Callable[[Any], Any]:
    """What gives the item back, told what is in its place now."""
    if strongly or not isinstance(item, sys.modules["torch"].Tensor):
        return lambda now: item
    reference, shape = weakref.ref(item), tuple(item.shape)

    def give(now: Any) -> Any:
        tensor = reference()
        return _cropped(now, shape) if tensor is None else tensor

    return give


def _cropped(now: Any, shape: tuple[int, ...]) -> Any:
    torch = sys.modules["torch"]
    if isinstance(now, torch.Tensor) and now.dim() == len(shape):
        longer = [place for place, size in enumerate(now.shape) if size != shape[place]]
        if not longer:
            return now
        if len(longer) == 1 and now.shape[longer[0]] > shape[longer[0]]:
            return now.narrow(longer[0], 0, shape[longer[0]])
    raise NotReplayable("a tensor that it was given, or kept, is gone")
