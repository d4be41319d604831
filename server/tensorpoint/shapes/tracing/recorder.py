"""Takes what rewritten code tells: the snapshots of each site, in order, and the way there."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch._C import DisableTorchFunction

from .snapshots import Snapshot, snap

#: The frames of the file that were open, outermost first: qualified name and line.
Path = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class ModuleCall:
    """A call of a module: elements of its parameters, floating point operations, if counted."""

    parameters: int
    flops: int


@dataclass
class Observation:
    """One value at a site. `times` is more than 1 where module calls were not repeated."""

    site: int
    snapshot: Snapshot
    path: Path
    times: int = 1
    #: The module call that gave the value.
    call: ModuleCall | None = None


@dataclass
class Recorder:
    """Records while `on`. `file` is the name that the rewritten code was compiled with."""

    file: str
    on: bool = False
    observations: list[Observation] = field(default_factory=list[Observation])
    #: Floating point operations so far, where they are counted.
    flops: int = 0
    #: What happened, as indices of `observations`: more than once where a call was not repeated.
    _happened: list[int] = field(default_factory=list[int])
    _last: tuple[Any, ModuleCall] | None = None

    def note(self, site: int, value: Any) -> Any:
        """Called by the rewritten code; returns `value`."""
        if self.on:
            with DisableTorchFunction():
                snapshot = snap(value)
            if snapshot is not None:
                seen = Observation(site, snapshot, self._path(sys._getframe(1)))
                if self._last is not None and self._last[0] is value:
                    seen.call = self._last[1]
                self._happened.append(len(self.observations))
                self.observations.append(seen)
        return value

    def returned(self, value: Any, call: ModuleCall) -> None:
        """A module has returned `value`."""
        self._last = (value, call)

    def _path(self, frame: Any) -> Path:
        found: list[tuple[str, int]] = []
        while frame is not None:
            code = frame.f_code
            if code.co_filename == self.file:
                found.append((getattr(code, "co_qualname", code.co_name), frame.f_lineno))
            frame = frame.f_back
        return tuple(reversed(found))

    @property
    def now(self) -> int:
        """A moment, for `again`."""
        return len(self._happened)

    def again(self, first: int, last: int) -> None:
        """What happened between two moments happened once more."""
        self._happened += self._happened[first:last]

    def since(self, first: int) -> Iterator[Snapshot]:
        """The values that were told since a moment."""
        for index in set(self._happened[first:]):
            yield self.observations[index].snapshot

    def told(self, first: int) -> list[tuple[int, Snapshot]]:
        """Sites and values since a moment, in order."""
        found = [self.observations[index] for index in self._happened[first:]]
        return [(each.site, each.snapshot) for each in found]

    def take(self) -> list[Observation]:
        """What was recorded since the last time."""
        for index, times in Counter(self._happened).items():
            self.observations[index].times = times
        taken, self.observations, self._happened = self.observations, [], []
        self._last, self.flops = None, 0
        return taken
