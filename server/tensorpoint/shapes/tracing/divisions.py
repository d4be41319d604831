"""Views that do not come out even, in words: `heads 12 does not divide 770`, `12 * 64 is 768`.

torch tells the sizes that were asked for and the number of all elements. What the view leaves as it
was, such as batch and length, is left out here; of what remains one number is not a divisor.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

#: What torch says: the sizes asked for, and how many elements there are for them.
_UNEVEN = (
    re.compile(r"shape '\[(.*)\]' is invalid for input of size (\d+)"),
    re.compile(r"sizes \[(.*)\] don't multiply up to the size of dim -?\d+ \((\d+)\)"),
)


def uneven(
    message: str, node: ast.expr | None, look_up: Callable[[ast.expr], Any]
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Which number does not divide which, and that number's expression with its value.

    Where more than one may be meant, what they make together. Both empty if the message is about
    something else.
    """
    found = next((match for each in _UNEVEN if (match := each.search(message))), None)
    if found is None or not isinstance(node, ast.Call):
        return "", ()
    wanted, total = [int(size) for size in found[1].split(",")], int(found[2])
    names = _names(node, len(wanted))
    asked = list(zip(wanted, names, strict=True))
    owner = look_up(node.func.value) if isinstance(node.func, ast.Attribute) else None
    have = list(owner.shape) if isinstance(owner, torch.Tensor) else []
    if math.prod(have) == total:
        asked, have = _remaining(asked, have)
        total = math.prod(have)
    else:  # of one dimension, or of something that has no name
        have = []
        while asked and asked[0][0] > 0 and total % asked[0][0] == 0:
            total //= asked.pop(0)[0]
    sizes = [size for size, _ in asked if size > 0]
    if not sizes:
        return "", ()
    divisors: dict[tuple[int, str], int] = {}
    for size, name in asked:
        parts = [each for each in have if each % size] if name and size > 0 else []
        for whole in parts or [total]:
            # The quotient is asked for as well: by -1, or as in view(heads, width // heads).
            if size > 0 and whole % size and (whole // size in sizes or -1 in wanted):
                divisors.setdefault((size, name), whole)
    if len(divisors) > 1:
        divisors = {each: whole for each, whole in divisors.items() if each[1]}
    if len(divisors) == 1:
        ((size, name), whole) = divisors.popitem()
        label = f"{name.rpartition('.')[2]} {size}".lstrip()
        return f"{label} does not divide {whole}", ((name, str(size)),) if name else ()
    there = have[-1] if have and -1 in wanted else total
    if len(sizes) == 1:
        return f"{sizes[0]} in place of {there}", ()
    return f"{' * '.join(map(str, sizes))} is {math.prod(sizes)}, not {there}", ()


def _remaining(
    asked: list[tuple[int, str]], have: list[int]
) -> tuple[list[tuple[int, str]], list[int]]:
    """Without the sizes that stay, in front and behind."""
    while asked and have and asked[0][0] == have[0]:
        asked, have = asked[1:], have[1:]
    while asked and have and asked[-1][0] == have[-1]:
        asked, have = asked[:-1], have[:-1]
    return asked, have


def _names(node: ast.Call, count: int) -> Sequence[str]:
    """The sizes as they are written, "" for what is no name."""
    last = node.args[-1:]
    sizes: list[ast.expr] = list(node.args)
    if last and isinstance(last[0], (ast.Tuple, ast.List)):
        sizes = list(last[0].elts)
    if len(sizes) != count or any(isinstance(size, ast.Starred) for size in sizes):
        return [""] * count
    named = (ast.Name, ast.Attribute)
    return [ast.unparse(size) if isinstance(size, named) else "" for size in sizes]
