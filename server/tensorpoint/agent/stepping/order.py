"""In which order a call of a root has entered its layers: what a step back counts by.

One list of depths a call, appended to at each entry; kept while a layer breakpoint is armed or
somebody steps, so that a step back is possible from the first stop on.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..modules import Call

if TYPE_CHECKING:
    from torch.nn import Module


class Order(threading.local):
    """The order of the newest call of a root on each thread."""

    def __init__(self) -> None:
        self.root: Callable[[], Module | None] = lambda: None
        #: Of each entry so far; empty where the call began before anybody listened.
        self.depths: list[int] = []

    def on_enter(self, call: Call, outer: list[Call]) -> None:
        """A module is entered."""
        if not outer:
            self.root, self.depths = weakref.ref(call.module), []
        elif not self.depths:
            return
        call.number = len(self.depths)
        self.depths.append(len(outer) + 1)

    def depths_of(self, root: Module) -> list[int]:
        """The same where the newest call is one of this root; else nothing is known."""
        return self.depths if self.root() is root else []

    def position(self, number: int, *, at_entry: bool) -> int:
        """How many entries are before a stop: at the exit of a layer those inside of it are."""
        if at_entry:
            return number
        after = (
            later
            for later in range(number + 1, len(self.depths))
            if self.depths[later] <= self.depths[number]
        )
        return next(after, len(self.depths))

    def before(self, number: int, level: int) -> int | None:
        """The entry before the `number`-th one that is at this level or further out."""
        return next(
            (earlier for earlier in range(number - 1, -1, -1) if self.depths[earlier] <= level),
            None,
        )
