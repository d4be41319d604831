"""Expressions over the symbols of the inputs: their values at sizes, and how they are written.

Python as a person writes it: `ceil(H/2)`, not `(H - 1)//2 + 1`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

Sizes = dict[str, int]

_NAME = re.compile(r"[A-Za-z_]\w*")
_FUNCTIONS = {"ceil": math.ceil, "floor": math.floor, "min": min, "max": max}


def value_of(expression: str, sizes: Sizes) -> int | None:
    """The value of an expression as it is shown; None if it isn't an integer there."""
    value = eval(_compiled(expression), {"__builtins__": {}}, {**_FUNCTIONS, **sizes})
    return int(value) if value == int(value) else None


@lru_cache(4096)
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<size>", "eval")


class Elsewhere:
    """Sizes at which rules that are rivals are compared: all at once, 0.2 us each.

    From index `beyond` on they are larger than those of any probe.
    """

    def __init__(self, sizes: Sequence[Sizes], beyond: Sequence[Sizes] = ()) -> None:
        self.sizes = [*sizes, *beyond]
        self.beyond = len(sizes)
        self._names = tuple(self.sizes[0]) if self.sizes else ()
        self._columns = [[each[name] for each in self.sizes] for name in self._names]
        self._values: dict[str, tuple[Any, ...]] = {}
        self._refused: set[int] = set()

    def refuse(self, index: int) -> None:
        """The call does not run there: what rules say of it makes no difference."""
        if index < self.beyond:
            self._refused.add(index)
        else:  # a table that ends: the others are as large
            self._refused.update(range(self.beyond, len(self.sizes)))

    def splits(self, rules: Sequence[str]) -> dict[int, float]:
        """Where rules differ, by index: the share of them that a run there rules out at least."""
        rows = set(map(self._at_all, rules))
        found: dict[int, float] = {}
        for index, values in enumerate(zip(*rows)) if len(rows) > 1 else ():
            different = set(values)
            if len(different) > 1 and index not in self._refused:
                found[index] = 1 - max(map(values.count, different)) / len(values)
        return found

    def _at_all(self, rule: str) -> tuple[Any, ...]:
        known = self._values.get(rule)
        if known is None:
            text = f"lambda {', '.join(self._names)}: {rule}"
            function = eval(text, {"__builtins__": {}, **_FUNCTIONS})
            known = self._values[rule] = tuple(map(function, *self._columns))
        return known


def symbols_of(expression: str) -> set[str]:
    """The symbols of an expression."""
    return set(_NAME.findall(expression)) - _FUNCTIONS.keys()


# -- writing


def times(factor: int, text: str) -> str:
    """A multiple of an expression."""
    if factor == 1:
        return text
    if factor == -1:
        return f"-{text}"
    head = text.split("//")[0] if "//" in text and not text.startswith("(") else ""
    return f"{factor}*({text})" if head and "(" not in text else f"{factor}*{text}"


def with_offset(text: str, offset: int) -> str:
    """An expression and a number."""
    if not offset:
        return text
    return f"{text} + {offset}" if offset > 0 else f"{text} - {-offset}"


def plus(first: str, factor: int, second: str) -> str:
    """An expression and a multiple of another."""
    return f"{first} {'+' if factor > 0 else '-'} {times(abs(factor), second)}"


def as_factor(text: str) -> str:
    """In brackets where it is a sum, a quotient or a remainder."""
    return f"({text})" if _outside(text) & set(" /%") else text


def squared(text: str) -> str:
    """The square of a factor."""
    return f"({text})**2" if "*" in _outside(text) else f"{text}**2"


def _outside(text: str) -> set[str]:
    """The characters that are in no brackets."""
    found: set[str] = set()
    depth = 0
    for character in text:
        depth -= character == ")"
        if not depth:
            found.add(character)
        depth += character == "("
    return found


def floor_text(text: str, shift: int, divisor: int, multiplier: int, offset: int) -> str:
    """`multiplier*floor((text + shift)/divisor) + offset` as a person writes it."""
    whole, rest = divmod(shift, divisor)
    if rest == 0:
        quotient, atom = f"{as_factor(text)}//{divisor}", False
    elif rest == divisor - 1:
        quotient, atom = f"ceil({as_factor(text)}/{divisor})", True
    else:
        quotient, atom = f"({text} + {rest})//{divisor}", False
    offset += multiplier * whole
    if multiplier == 1:
        return with_offset(quotient, offset)
    return with_offset(f"{multiplier}*{quotient if atom else f'({quotient})'}", offset)
