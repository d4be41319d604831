"""DAP's hit conditions: at which times of those that a breakpoint is met it stops."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from .errors import ConditionError

_HITS = re.compile(r"\s*(==|>=|<=|>|<|%)?\s*(\d+)\s*")
_COMPARE: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "%": lambda count, number: count % number == 0,
}


def parse_hits(text: str) -> Callable[[int], bool]:
    """`3` for the third time, `>= 3`, `% 10`, nothing for each. Raises ConditionError."""
    if not text.strip():
        return lambda count: True
    found = _HITS.fullmatch(text)
    if found is None or (found[1] == "%" and int(found[2]) == 0):
        raise ConditionError('a hit count is a number, or such as "> 5", ">= 5" or "% 10"', text)
    compare, number = _COMPARE[found[1] or "=="], int(found[2])
    return lambda count: compare(count, number)
