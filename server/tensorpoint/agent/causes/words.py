"""Numbers and places in a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence


def number(value: float) -> str:
    """Four digits; whole numbers up to a million in full, so that 65504 is 65504."""
    if math.isnan(value):
        return "NaN"
    if math.isfinite(value) and abs(value) < 1e6 and value == int(value):
        return str(int(value))
    return f"{value:.4g}"


def is_number(text: str) -> bool:
    """Whether an expression is a number written out."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def place(index: Sequence[int | str]) -> str:
    """ " at [2, 5]", " at [2, :]"; nothing for a scalar."""
    return f" at [{', '.join(map(str, index))}]" if index else ""


def count(amount: int, what: str) -> str:
    """ "1 element", "2 elements"."""
    return f"{amount} {what}{'' if amount == 1 else 's'}"


def listed(parts: Sequence[str]) -> str:
    """ "a, b and c", each once."""
    once = list(dict.fromkeys(part for part in parts if part))
    return " and ".join([", ".join(once[:-1]), once[-1]]) if len(once) > 1 else "".join(once)
