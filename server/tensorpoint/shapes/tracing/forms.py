"""Forms of rules over one or two columns of sizes: what fits them, as text.

A column has one number for each run. Each function yields all rules of its form that agree, or
nearly do: the caller compares them with every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from .expressions import as_factor, floor_text, plus, squared, times, with_offset

Column = Sequence[int]

#: Divisors that strides, pools, patches and windows make.
DIVISORS = (2, 4, 8, 16, 32, 64, 3, 5, 6, 7, 9, 10, 12, 14, 27, 28, 56, 128, 256, 512)
_MULTIPLIERS = (1, 2, 4, 3, 8, 16, 32, 64, 6, 7, 12, 128, 256, 512)
_MOST_SHIFTS = 12


@dataclass(frozen=True)
class Term:
    """A rule that others are made of, and its column."""

    text: str
    values: tuple[int, ...]


def floors(text: str, xs: Column, values: Column, *, rare: bool = False) -> Iterator[str]:
    """`j*floor((x + C)/k) + d`; `rare` takes any j that the columns allow."""
    for multiplier in _all_multipliers(values) if rare else _MULTIPLIERS:
        residue = values[0] % multiplier
        if any(value % multiplier != residue for value in values):
            continue
        ys = [(value - residue) // multiplier for value in values]
        for divisor in _divisors(xs, ys):
            low, high = _bounds(xs, ys, divisor)
            for shift in _shifts(low, high, divisor) if low <= high else ():
                yield floor_text(text, shift, divisor, multiplier, residue)


def _bounds(xs: Column, ys: Column, divisor: int) -> tuple[int, int]:
    """The least and the greatest C of `y = floor((x + C)/k)`; the wrong way round if none is."""
    low = divisor * ys[0] - xs[0]
    high = low + divisor - 1
    for x, y in zip(xs, ys):
        bound = divisor * y - x
        if bound > low:
            low = bound
        if bound + divisor - 1 < high:
            high = bound + divisor - 1
        if low > high:  # most divisors, after some sizes of two dozen
            break
    return low, high


def _all_multipliers(values: Column) -> list[int]:
    common = math.gcd(*(value - values[0] for value in values))
    return [j for j in range(1, min(common, 4096) + 1) if common % j == 0]


def _divisors(xs: Column, ys: Column) -> Sequence[int]:
    """Divisors that the greatest distance between two probes allows."""
    low, high = min(range(len(xs)), key=xs.__getitem__), max(range(len(xs)), key=xs.__getitem__)
    rise, run = ys[high] - ys[low], xs[high] - xs[low]
    if rise <= 0 or run <= 0:
        return ()
    # floor((x + C)/k) rises by more than run/k - 1 and less than run/k + 1.
    usual = [k for k in DIVISORS if (rise - 1) * k < run < (rise + 1) * k]
    if rise == 1:
        return usual
    # The others as well: `H//63` has to be told from `(H + 2)//64`.
    between = range(max(2, run // (rise + 1) + 1), (run - 1) // (rise - 1) + 1)
    return [*usual, *(k for k in between if k not in usual)]


def _shifts(low: int, high: int, divisor: int) -> list[int]:
    """The possible shifts: floor and ceil first, then the others, of many some."""
    every = range(low, high + 1)
    some = every[:: max(1, len(every) // (_MOST_SHIFTS - 2))]
    natural = [each for each in every if each % divisor in (0, divisor - 1)]
    rest = sorted({*some, *every[-1:]}, key=lambda shift: (abs(shift), shift))
    return list(dict.fromkeys([*natural, *rest]))


def line(xs: Column, values: Column) -> tuple[Fraction, Fraction] | None:
    """Slope and offset of values over xs; None if they aren't on a line."""
    other = next((i for i in range(1, len(xs)) if xs[i] != xs[0]), 0)
    if not other:
        return None
    rise, run = values[other] - values[0], xs[other] - xs[0]
    if not rise or any((v - values[0]) * run != rise * (x - xs[0]) for x, v in zip(xs, values)):
        return None
    slope = Fraction(rise, run)
    return slope, values[0] - slope * xs[0]


def multiples(text: str, xs: Column, values: Column) -> Iterator[str]:
    """`q*x + c`."""
    found = line(xs, values)
    if found and found[0].denominator == 1 and found[1].denominator == 1:
        yield with_offset(times(int(found[0]), as_factor(text)), int(found[1]))


def sums(one: Term, two: Term, values: Column) -> Iterator[str]:
    """`q*x + r*y + c`."""
    xs, ys = one.values, two.values
    (x0, x1, x2), (y0, y1, y2), (v0, v1, v2) = xs[:3], ys[:3], values[:3]
    determinant = (x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)
    if determinant == 0:
        return
    first, rest = divmod((v1 - v0) * (y2 - y0) - (v2 - v0) * (y1 - y0), determinant)
    second, more = divmod((x1 - x0) * (v2 - v0) - (x2 - x0) * (v1 - v0), determinant)
    if rest or more or not first or not second:
        return
    offset = v0 - first * x0 - second * y0
    if all(first * x + second * y + offset == v for x, y, v in zip(xs, ys, values)):
        if first < 0 < second:
            first, one, second, two = second, two, first, one
        text = plus(times(first, as_factor(one.text)), second, as_factor(two.text))
        yield with_offset(text, offset)


def total(terms: Sequence[Term], values: Column) -> Iterator[str]:
    """`x + y + z`: the levels of a pyramid in one row."""
    if sum(each.values[0] for each in terms) == values[0]:
        if all(sum(row) == value for value, *row in zip(values, *(x.values for x in terms))):
            yield " + ".join(each.text for each in terms)


def pairs(
    ones: Sequence[Term], twos: Sequence[Term], values: Column
) -> Iterator[tuple[Term, Term, int, int]]:
    """x, y, q and c of `q*x*y + c`."""
    if len(values) < 3:
        return
    rise, other_rise = values[1] - values[0], values[2] - values[0]
    for one in ones:
        a0, a1, a2 = one.values[:3]
        for two in twos:
            b0, b1, b2 = two.values[:3]
            run = a1 * b1 - a0 * b0
            if not run or rise * (a2 * b2 - a0 * b0) != other_rise * run:
                continue
            found = line([a * b for a, b in zip(one.values, two.values)], values)
            if found and found[0].denominator == 1 and found[1].denominator == 1:
                yield one, two, int(found[0]), int(found[1])


def product_text(one: str, two: str, factor: int, offset: int) -> str:
    """`q*x*y + c` as a person writes it."""
    first, second = as_factor(one), as_factor(two)
    text = squared(first) if first == second else f"{first}*{second}"
    return with_offset(times(factor, text), offset)


def products(ones: Sequence[Term], twos: Sequence[Term], values: Column) -> Iterator[str]:
    """`q*x*y + c`."""
    for one, two, factor, offset in pairs(ones, twos, values):
        yield product_text(one.text, two.text, factor, offset)


def quotient_products(
    one: Term, two: Term, ones: Sequence[Term], twos: Sequence[Term], values: Column
) -> Iterator[str]:
    """`q*x*y + c` for quotients x and y of two symbols, and for each all that y leaves of x.

    `(H//2)*(W//64)` has the rivals that `W//64` has, and more than one of them may fit.
    """
    for x, y, factor, offset in pairs(ones, twos, values):
        yield product_text(x.text, y.text, factor, offset)
        if not all(a and b for a, b in zip(x.values, y.values)):
            continue
        rest = [(value - offset) // (factor * b) for value, b in zip(values, y.values)]
        for text in floors(one.text, one.values, rest):
            yield product_text(text, y.text, factor, offset)
        rest = [(value - offset) // (factor * a) for value, a in zip(values, x.values)]
        for text in floors(two.text, two.values, rest):
            yield product_text(x.text, text, factor, offset)


def clamped(text: str, xs: Column, values: Column) -> Iterator[str]:
    """`min(x, c)`, `max(x, c)`."""
    if sum(value == max(values) for value in values) > 1:  # else the bound is any
        if all(min(x, max(values)) == value for x, value in zip(xs, values)):
            yield f"min({text}, {max(values)})"
    if sum(value == min(values) for value in values) > 1:
        if all(max(x, min(values)) == value for x, value in zip(xs, values)):
            yield f"max({text}, {min(values)})"


def extremes(one: Term, two: Term, values: Column) -> Iterator[str]:
    """`min(x, y)`, `max(x, y)`."""
    for name, choose in (("min", min), ("max", max)):
        if all(choose(x, y) == value for x, y, value in zip(one.values, two.values, values)):
            yield f"{name}({one.text}, {two.text})"


def remainders(text: str, xs: Column, values: Column) -> Iterator[str]:
    """`x % k`, `-x % k`."""
    for divisor in DIVISORS:
        if max(values) < divisor:
            if all(x % divisor == value for x, value in zip(xs, values)):
                yield f"{as_factor(text)} % {divisor}"
            if all(-x % divisor == value for x, value in zip(xs, values)):
                yield f"-{as_factor(text)} % {divisor}"
