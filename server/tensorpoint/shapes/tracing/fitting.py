"""From the sizes that runs have shown to an expression over the symbols of the inputs.

A run at given sizes shows the true value of each dim, never its rule. So the same call runs at
several sizes, *all* rules of the simplest fitting form below that agree with every run are listed,
and where two of them would differ elsewhere a run is added there (`Fit.apart`). What no rule fits
is not shown; nor is a rule that another rivals after these runs, if they differ at one of the sizes
that are drawn for comparison, or if it has an odd shift, `(H + 3)//7`, which those may not show.

Forms, over m, a symbol or a product of two or three:
    q*m + c                       and H/32, where H is known to be a multiple of 32
    j*floor((m + C)/k) + d        strides, pooling, padding to a multiple; nested ones are of this
    form
    q*u*v + c                     u and v of the above in two different symbols (flattened patches)
    q*m + r*n + c                 sums of two
    min(m, c), max(m, c)          windows
    m % k, -m % k                 padding
C isn't searched: each run bounds it, `k*y - m <= C < k*y - m + k` with y = (v - d)/j, and the
intersection of the bounds is the list of candidates. Probes at residues 1, 63, 0, 11, 37 mod 64
leave one of them in 97 % of the dims of convnets, four multiples of 32 in 45 % (floor and ceil are
the same there).

The result is a Python expression as a person writes it: `ceil(H/2)`, not `(H - 1)//2 + 1`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from types import CodeType

Sizes = dict[str, int]

_PRODUCT = re.compile(
    r"(?:(?:ceil|min|max)\([^()]*\)|\w+)(?:\*(?:(?:ceil|min|max)\([^()]*\)|\w+))*"
)
_SHIFTED = re.compile(r"\(\w+ \+ \d+\)//")
_FUNCTIONS = {"ceil": math.ceil, "floor": math.floor, "min": min, "max": max}
#: Divisors that strides, pools, patches and windows make.
_DIVISORS = (2, 4, 8, 16, 32, 64, 3, 5, 6, 7, 9, 10, 12, 14, 27, 28, 56, 128, 256, 512)
_MULTIPLIERS = (1, 2, 4, 3, 8, 16, 32, 64, 6, 7, 12, 128, 256, 512)


@dataclass(frozen=True)
class Factor:
    """A rule in one product of symbols, before multiplying: `text` and its value at each probe."""

    text: str
    values: tuple[int, ...]


def value_of(expression: str, sizes: Sizes) -> int | None:
    """The value of an expression as it is shown; None if it isn't an integer there."""
    value = eval(_compiled(expression), {"__builtins__": {}}, {**_FUNCTIONS, **sizes})
    return int(value) if value == int(value) else None


@lru_cache(4096)
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<size>", "eval")


class Fit:
    """Fits dims of one series of probes. `multiples` are the known divisors of symbols."""

    def __init__(
        self,
        probes: Sequence[Sizes],
        multiples: dict[str, int] | None = None,
        others: Sequence[Sizes] = (),
    ) -> None:
        self.probes = list(probes)
        self.multiples = multiples or {}
        #: Sizes at which rules that are rivals are compared.
        self.others = others
        self.symbols = tuple(
            name for name in self.probes[0] if len({probe[name] for probe in self.probes}) > 1
        )
        self._known: dict[tuple[int, ...], list[str]] = {}
        self._fits: dict[str, Fit] = {}

    def candidates(self, values: tuple[int, ...]) -> list[str]:
        """All rules that agree with every probe, the simplest first."""
        known = self._known.get(values)
        if known is None:
            known = self._known[values] = list(dict.fromkeys(self._forms(values)))
        return known

    def best(self, values: tuple[int, ...]) -> str | None:
        """The simplest rule; None if none fits, or another does that differs elsewhere."""
        found = self.candidates(values)
        if not found:
            return None
        if len(found) > 1 and (_SHIFTED.search(found[0]) or self.apart(values, self.others)):
            return None
        return found[0]

    def _holds(self, text: str, values: tuple[int, ...]) -> bool:
        return all(value_of(text, probe) == value for probe, value in zip(self.probes, values))

    def apart(self, values: tuple[int, ...], allowed: Sequence[Sizes]) -> Sizes | None:
        """Of the sizes that may be tried, those at which the most rules differ; None if none do."""
        found = self.candidates(values)
        best, most = None, 1
        if len(found) > 1:
            for sizes in allowed:
                different = len({value_of(text, sizes) for text in found[:12]})
                if different > most:
                    best, most = sizes, different
        return best

    # -- forms

    def _forms(self, values: tuple[int, ...]) -> Iterator[str]:
        """The simplest class of rules that has one which fits: five sizes on a line are a line."""
        if len(set(values)) == 1:
            yield str(values[0])
            return
        products = list(self._products())
        single = [(name, xs) for name, xs in products if name in self.symbols]
        for tier in (
            lambda: (t for text, xs in products for t in self._affine(text, xs, values)),
            lambda: (
                t
                for text, xs in single
                for form in (self._floors, _clamped, _remainders)
                for t in form(text, xs, values)
            ),
            lambda: self._own_factor(values),
            lambda: self._composed(values, self._common),
            lambda: self._composed(values, self._all),
            lambda: self._sums(products, values),
            lambda: self._sums(self._quotients(), values),
        ):
            found = [text for text in tier() if self._holds(text, values)]
            if found:
                yield from found
                return

    def _products(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for count in (1, 2, 3):
            for names in itertools.combinations_with_replacement(self.symbols, count):
                if count == 3 and len(set(names)) < 3:
                    continue
                text = "*".join(names) if len(set(names)) == count else f"{names[0]}**{count}"
                yield text, tuple(math.prod(probe[n] for n in names) for probe in self.probes)

    def _affine(self, text: str, xs: tuple[int, ...], values: tuple[int, ...]) -> Iterator[str]:
        line = _line(xs, values)
        if line is None:
            return
        slope, offset = line
        if offset.denominator != 1:
            return
        if slope.denominator == 1:
            yield _sum(_times(int(slope), text), int(offset))
        elif self.multiples.get(text, 1) % slope.denominator == 0:
            quotient = f"{text}/{slope.denominator}"
            yield _sum(_times(slope.numerator, quotient), int(offset))

    def _floors(self, text: str, xs: tuple[int, ...], values: tuple[int, ...]) -> Iterator[str]:
        if self.multiples.get(text, 1) > 1 and any(True for _ in self._affine(text, xs, values)):
            return
        for multiplier in _MULTIPLIERS:
            residue = values[0] % multiplier
            if any(value % multiplier != residue for value in values):
                continue
            ys = [(value - residue) // multiplier for value in values]
            for divisor in _divisors(xs, ys):
                low = max(divisor * y - x for x, y in zip(xs, ys))
                high = min(divisor * y - x + divisor - 1 for x, y in zip(xs, ys))
                for shift in _natural(low, high, divisor):
                    yield _floor_text(text, shift, divisor, multiplier, residue)

    def _factors(self, name: str, *, rare: bool) -> Iterator[Factor]:
        """Rules in one symbol that are multiplied with others: floors and ceils, or rarer ones."""
        xs = [probe[name] for probe in self.probes]
        multiple = self.multiples.get(name, 1)
        if not rare:
            yield Factor(name, tuple(xs))
        for c in (1, 2, -1, -2) if rare else ():
            yield Factor(f"({_sum(name, c)})", tuple(x + c for x in xs))
        for divisor in _DIVISORS:
            if multiple % divisor == 0:
                if rare:
                    continue
                yield Factor(f"({name}/{divisor})", tuple(x // divisor for x in xs))
                continue
            for shift in range(1, min(divisor - 1, 8)) if rare else (0, divisor - 1):
                ys = tuple((x + shift) // divisor for x in xs)
                if len(set(ys)) > 1:
                    text = _floor_text(name, shift, divisor, 1, 0)
                    yield Factor(text if text.startswith("ceil(") else f"({text})", ys)

    def _without(self, name: str) -> Fit:
        """The same probes as if they had not this symbol."""
        found = self._fits.get(name)
        if found is None:
            found = self._fits[name] = Fit(self.probes, self.multiples)
            found.symbols = tuple(other for other in self.symbols if other != name)
        return found

    def _own_factor(self, values: tuple[int, ...]) -> Iterator[str]:
        """B*(...): a symbol that divides every value, times a rule in the others."""
        if len(self.symbols) < 2:
            return
        for name in self.symbols:
            xs = [probe[name] for probe in self.probes]
            if any(value % x for value, x in zip(values, xs)):
                continue
            rest = tuple(value // x for value, x in zip(values, xs))
            for text in self._without(name).candidates(rest):
                yield f"{name}*{_factor(text)}"

    @cached_property
    def _common(self) -> dict[str, list[Factor]]:
        return {name: list(self._factors(name, rare=False)) for name in self.symbols}

    @cached_property
    def _all(self) -> dict[str, list[Factor]]:
        rare = {name: list(self._factors(name, rare=True)) for name in self.symbols}
        return {name: [*self._common[name], *rare[name]] for name in self.symbols}

    def _composed(self, values: tuple[int, ...], factors: dict[str, list[Factor]]) -> Iterator[str]:
        for first, second in itertools.combinations(self.symbols, 2):
            if len(values) < 3:
                continue
            rise, other_rise = values[1] - values[0], values[2] - values[0]
            for one in factors[first]:
                a0, a1, a2 = one.values[:3]
                for two in factors[second]:
                    b0, b1, b2 = two.values[:3]
                    run = a1 * b1 - a0 * b0
                    if not run or rise * (a2 * b2 - a0 * b0) != other_rise * run:
                        continue
                    xs = tuple(a * b for a, b in zip(one.values, two.values))
                    line = _line(xs, values)
                    if line and line[0].denominator == 1 and line[1].denominator == 1:
                        text = _times(int(line[0]), f"{one.text}*{two.text}")
                        yield _sum(text, int(line[1]))
        for name in self.symbols:  # a square of a rule: windows of one symbol
            for one in factors[name]:
                line = _line(tuple(y * y for y in one.values), values)
                if line and line[0].denominator == 1 and line[1].denominator == 1:
                    yield _sum(_times(int(line[0]), f"{one.text}**2"), int(line[1]))

    def _quotients(self) -> list[tuple[str, tuple[int, ...]]]:
        """Symbols, and their quotients rounded down or up."""
        return [(rule.text, rule.values) for name in self.symbols for rule in self._common[name]]

    def _sums(
        self, terms: list[tuple[str, tuple[int, ...]]], values: tuple[int, ...]
    ) -> Iterator[str]:
        if len(self.probes) < 4:
            return
        for (text, xs), (other, ys) in itertools.combinations(terms, 2):
            plane = _plane(xs, ys, values)
            if plane is not None:
                first, second, offset = plane
                yield _sum(_plus(_times(first, text), second, other), offset)


def _divisors(xs: Sequence[int], ys: Sequence[int]) -> list[int]:
    """Divisors that the greatest distance between two probes allows."""
    low, high = min(range(len(xs)), key=xs.__getitem__), max(range(len(xs)), key=xs.__getitem__)
    rise, run = ys[high] - ys[low], xs[high] - xs[low]
    if rise <= 0 or run <= 0:
        return []
    # floor((x + C)/k) rises by more than run/k - 1 and less than run/k + 1.
    return [k for k in _DIVISORS if (rise - 1) * k < run < (rise + 1) * k]


def _natural(low: int, high: int, divisor: int) -> list[int]:
    """The possible shifts: floor and ceil first, then those next to them."""
    return sorted(
        range(low, high + 1),
        key=lambda shift: (shift % divisor not in (0, divisor - 1), abs(shift)),
    )[:12]


def _line(xs: Sequence[int], values: Sequence[int]) -> tuple[Fraction, Fraction] | None:
    """Slope and offset of values over xs; None if they aren't on a line."""
    other = next((i for i in range(1, len(xs)) if xs[i] != xs[0]), 0)
    if not other:
        return None
    slope = Fraction(values[other] - values[0], xs[other] - xs[0])
    offset = values[0] - slope * xs[0]
    if slope == 0 or any(slope * x + offset != value for x, value in zip(xs, values)):
        return None
    return slope, offset


def _plane(
    xs: Sequence[int], ys: Sequence[int], values: Sequence[int]
) -> tuple[int, int, int] | None:
    (x0, x1, x2), (y0, y1, y2), (v0, v1, v2) = xs[:3], ys[:3], values[:3]
    determinant = (x1 - x0) * (y2 - y0) - (x2 - x0) * (y1 - y0)
    if determinant == 0:
        return None
    first, rest = divmod((v1 - v0) * (y2 - y0) - (v2 - v0) * (y1 - y0), determinant)
    second, more = divmod((x1 - x0) * (v2 - v0) - (x2 - x0) * (v1 - v0), determinant)
    if rest or more or not first or not second:
        return None
    offset = v0 - first * x0 - second * y0
    if any(first * x + second * y + offset != v for x, y, v in zip(xs, ys, values)):
        return None
    return first, second, offset


def _clamped(text: str, xs: Sequence[int], values: Sequence[int]) -> Iterator[str]:
    for name, bound, choose in (("min", max(values), min), ("max", min(values), max)):
        chosen: Callable[..., int] = choose
        if all(chosen(x, bound) == value for x, value in zip(xs, values)):
            if sum(value == bound for value in values) > 1:  # else the bound is any
                yield f"{name}({text}, {bound})"


def _remainders(text: str, xs: Sequence[int], values: Sequence[int]) -> Iterator[str]:
    for divisor in _DIVISORS:
        if max(values) < divisor:
            if all(x % divisor == value for x, value in zip(xs, values)):
                yield f"{text} % {divisor}"
            if all(-x % divisor == value for x, value in zip(xs, values)):
                yield f"-{text} % {divisor}"


# -- writing


def _times(factor: int, text: str) -> str:
    if factor == 1:
        return text
    if factor == -1:
        return f"-{text}"
    head = text.split("//")[0] if "//" in text and not text.startswith("(") else ""
    return f"{factor}*({text})" if head and "(" not in text else f"{factor}*{text}"


def _sum(text: str, offset: int) -> str:
    if not offset:
        return text
    return f"{text} + {offset}" if offset > 0 else f"{text} - {-offset}"


def _plus(first: str, factor: int, second: str) -> str:
    return f"{first} {'+' if factor > 0 else '-'} {_times(abs(factor), second)}"


def _factor(text: str) -> str:
    """In brackets where it is a sum or a quotient."""
    plain = " " not in text and "/" not in text
    return text if plain or _PRODUCT.fullmatch(text) else f"({text})"


def _floor_text(text: str, shift: int, divisor: int, multiplier: int, offset: int) -> str:
    """`multiplier*floor((text + shift)/divisor) + offset` as a person writes it."""
    whole, rest = divmod(shift, divisor)
    if rest == 0:
        quotient, atom = f"{text}//{divisor}", False
    elif rest == divisor - 1:
        quotient, atom = f"ceil({text}/{divisor})", True
    else:
        quotient, atom = f"({text} + {rest})//{divisor}", False
    offset += multiplier * whole
    if multiplier == 1:
        return _sum(quotient, offset)
    return _sum(f"{multiplier}*{quotient if atom else f'({quotient})'}", offset)
