"""How often the loops of a script turn.

What goes over a few items does so as it is written. A loader, and what turns more often, is looked
at for two turns with the first item: what the second has like the first is so in all of them, and
what it changes, such as a list that grows, is unknown after the loop.
"""

from __future__ import annotations

import itertools
import sys
import time
import types
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from .modes import TooLong
from .recorder import Recorder
from .snapshots import snap
from .unknown import UNKNOWN, Pattern, Sampled, Skip, Unknown, spread
from .values import first_batch

_MOST_TURNS = 32
#: Of a loader of tensors, whose batches are made.
_LARGEST_BATCH = 512
_KNOWN = (
    list, tuple, dict, set, frozenset, str, bytes, range, type({}.keys()), type({}.values()),
    type({}.items()), torch.Tensor, Iterator, torch.nn.ModuleList, torch.nn.ModuleDict,
    torch.nn.Sequential, torch.nn.ParameterList,
)  # fmt: skip


class Turns:
    """Of one run. `guarded` are the codes whose generators may be gone through."""

    def __init__(self, recorder: Recorder, guarded: Container[types.CodeType], end: float) -> None:
        self._recorder, self._guarded, self._end = recorder, guarded, end
        self._unsettled: dict[int, set[str]] = {}
        #: Sites that another turn of a loop would change, and those whose turns are not counted.
        self.unstable: set[int] = set()
        self.uncounted: set[int] = set()
        #: What stands in the place of builtins that go over something.
        self.builtins: dict[Callable[..., Any], Callable[..., Any]] = {
            enumerate: self._enumerate,
            zip: self._zip,
            iter: self._iter,
            next: self._next,
        }

    def loop(self, over: Any, key: int, pattern: Pattern, names: Sequence[str]) -> Iterator[Any]:
        """The items of the loop `key`, to be unpacked by `pattern`; `names` are those within."""
        frame = sys._getframe(1)
        self._unsettled[key] = set()
        items, complete = self._items(over)
        states = [_marks(frame.f_locals, names)]
        told: list[list[Any]] = []
        try:
            for item in items if complete else itertools.repeat(items[0], 2):
                if time.monotonic() > self._end:
                    raise TooLong
                start = self._recorder.now
                yield spread(item, pattern)
                if not complete:
                    told.append(self._recorder.told(start))
                    states.append(_marks(frame.f_locals, names))
        except GeneratorExit:  # left by `break`, perhaps for what a value was assumed to be
            now = _marks(frame.f_locals, names)
            self._unsettled[key] = {n for n, mark in states[0].items() if now.get(n) != mark}
            raise
        if not complete:
            one, two = states[-2:]
            self._unsettled[key] = {name for name in two if two[name] != one.get(name)}
            self.unstable |= _differing(*told)
            self.uncounted |= {site for turn in told for site, _ in turn}

    def is_unsettled(self, key: int, name: str) -> bool:
        """Whether another turn of the loop would have changed the name."""
        return name in self._unsettled.get(key, ())

    def all_of(self, over: Any) -> Any:
        """What a comprehension goes over: all of it, or it isn't made."""
        items, complete = self._items(over)
        if complete:
            return items
        if isinstance(over, (range, list, tuple)):
            return over
        raise Skip

    def _items(self, over: Any) -> tuple[Sequence[Any], bool]:
        """What is looped over, and whether that is all of it."""
        if isinstance(over, Sampled):
            return [over.item], False
        if isinstance(over, DataLoader):
            return [_batch(over)], False
        if not isinstance(over, _KNOWN):
            return [UNKNOWN], False
        if isinstance(over, types.GeneratorType) and not self._is_harmless(over.gi_code):
            return [UNKNOWN], False
        items = list(itertools.islice(iter(over), _MOST_TURNS + 1))
        return (items[:1], False) if len(items) > _MOST_TURNS else (items, True)

    def _is_harmless(self, code: types.CodeType) -> bool:
        return code in self._guarded or code.co_filename.startswith(torch.__path__[0])

    def _enumerate(self, over: Any, start: int = 0) -> Any:
        items, complete = self._items(over)
        numbered = list(enumerate(items, start))
        return numbered if complete else Sampled(numbered[0])

    def _zip(self, *overs: Any, **_: Any) -> Any:
        found = [self._items(each) for each in overs]
        if all(complete for _, complete in found):
            return list(zip(*(items for items, _ in found)))
        if any(not items for items, _ in found):
            return []
        return Sampled(tuple(items[0] for items, _ in found))

    def _iter(self, over: Any, *_: Any) -> Any:
        items, complete = self._items(over)
        return iter(items) if complete else Sampled(items[0])

    def _next(self, over: Any, *default: Any) -> Any:
        if isinstance(over, Unknown):
            return over.item if isinstance(over, Sampled) else UNKNOWN
        return next(over, *default)


def _batch(loader: Any) -> Any:
    """What a loader of tensors that are there gives first; others would read their data."""
    data, size = loader.dataset, loader.batch_size
    while isinstance(data, Subset):
        data = data.dataset
    if not isinstance(data, TensorDataset) or not size or size > _LARGEST_BATCH:
        return UNKNOWN
    try:
        return first_batch(loader, size)
    except Exception:  # a `collate_fn` of the user's
        return UNKNOWN


def _marks(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """What shapes depend on in the values of names, to be compared."""
    return {name: _mark(values[name]) for name in names if name in values}


def _mark(value: Any) -> Any:
    if isinstance(value, Unknown):
        return "?"
    return (snap(value), len(value) if isinstance(value, (list, dict, set)) else None)


def _differing(one: list[Any], two: list[Any]) -> set[int]:
    """The sites that were told other values in the second turn than in the first."""
    values: list[dict[int, list[Any]]] = [{}, {}]
    for found, told in zip(values, (one, two)):
        for site, snapshot in told:
            found.setdefault(site, []).append(snapshot)
    return {s for s in values[0].keys() | values[1].keys() if values[0].get(s) != values[1].get(s)}
