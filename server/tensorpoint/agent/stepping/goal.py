"""What a step waits for.

A position has a level: the number of calls around it that a step over stays within. At the entry or
exit of a layer at depth d (the root is at 1) the level is d; at a line inside of its forward d + 1,
between its children.

| step | ends at |
|---|---|
| over | the next entry at this level or further out, or the exit of the layer around |
| in   | the next entry at all, or the exit of the layer around |
| out  | the exit of the layer around, its output visible |

The root has no layer around: out of it is at its own exit, and from there on at what comes next.
Backward is the same in reverse: a layer is entered when the gradient of its output is there.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch.nn import Module

How = Literal["over", "in", "out"]


@dataclass(frozen=True)
class Goal:
    """Where the running step ends."""

    how: How
    level: int
    #: End at the entry of this layer only, or where the layer around is left without it.
    target: weakref.ref[Module] | None = None

    def is_reached(self, module: object, depth: int, *, entering: bool) -> bool:
        """Whether the entry (or exit) of `module` at `depth` is the end of this step."""
        if self.target is not None and entering and depth >= self.level:
            return self.target() is module
        if self.how == "out" or self.target is not None:
            outermost = depth == 1 and self.level <= 2
            return depth < self.level or (outermost and (not entering or self.level <= 1))
        if not entering:
            return depth < self.level
        return self.how == "in" or depth <= self.level
