"""How often to measure: as many rounds as a time budget allows, but some at least."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def rounds(seconds: float, least: int, most: int) -> Iterator[int]:
    """Count rounds until `seconds` have passed, within the two bounds."""
    end = time.monotonic() + seconds
    for number in range(most):
        if number >= least and time.monotonic() > end:
            return
        yield number


def taking_turns(items: Sequence[Item], number: int) -> Sequence[Item]:
    """`items` beginning with another one each round, so that none always runs first."""
    first = number % len(items)
    return [*items[first:], *items[:first]]
