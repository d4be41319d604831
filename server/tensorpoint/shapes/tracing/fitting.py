"""From the sizes that runs have shown to an expression over the symbols of the inputs.

A run at given sizes shows the true value of each dim, never its rule. So the same call runs at
several sizes, *all* rules of the simplest fitting form below that agree with every run are listed,
and where two of them would differ elsewhere a run is added there (`Fit.splits`). What no rule fits
is not shown; nor is a rule that another rivals after these runs, if they differ at one of the sizes
that are compared: each size between the smallest and the largest of a symbol, and some beyond.

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

What is still without a rule is looked for once more with the rules of the other places as m
(`Fit.learn`): a program makes sizes step by step, so what the step before had is among them. It has
no need of more forms then: a window's padding is `-x % 7` of what the strides have left, patches
are the product of two sides, whatever their strides and paddings were. Rarer forms in two symbols
are tried after these. All of them come from many pairs, so each has to hold in runs that it was not
found by (`held`), too. (Sums of two quotients of one symbol are tried where the program has both
only: `2*(W//9) - 2*ceil(W/10) + 2` agrees with `2*ceil((W//42)/2)` at 13 of 13 sizes.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from .expressions import Elsewhere, Sizes, as_factor, floor_text, symbols_of, times, value_of
from .expressions import with_offset as _sum
from .forms import (
    DIVISORS,
    Term,
    clamped,
    extremes,
    floors,
    line,
    multiples,
    products,
    quotient_products,
    remainders,
    sums,
    total,
)

#: Runs that a rule of the other places' has to hold in, beyond those that it was found by.
CHECKS = 2
#: Rules of other places that are tried in pairs, and by themselves.
_MOST_PAIRED, _MOST_TERMS = 48, 120
_MOST_RIVALS = 200
#: Sums of up to so many products of two sides: 7,000 of them.
_LONGEST_TOTAL, _MOST_IN_TOTALS = 5, 16
#: Turns of learning: what a later place has may be what an earlier one is made of.
_TURNS = 3
#: Learning is left off where so many columns fit nothing: then it's values that decide.
_MOST_OPEN = 200


def _parts(text: str) -> tuple[int, int]:
    return text.count(" + ") + text.count(" - "), len(text)


class Fit:
    """Fits dims of one series of probes. `multiples` are the known divisors of symbols."""

    def __init__(
        self,
        probes: Sequence[Sizes],
        multiples: dict[str, int] | None = None,
        others: Elsewhere | None = None,
        *,
        held: int = 0,
        before: Fit | None = None,
    ) -> None:
        self.probes = list(probes)
        self.multiples = multiples or {}
        #: Sizes at which rules that are rivals are compared.
        self.others = others or Elsewhere(())
        self.symbols = tuple(
            name for name in self.probes[0] if len({probe[name] for probe in self.probes}) > 1
        )
        #: The last probes, which rules over others' rules are not found by.
        self.held = held
        self._known: dict[tuple[int, ...], list[str]] = {}
        self._fits: dict[tuple[str, bool], Fit] = {}
        #: Rules of other places, and the columns that have rules made of these.
        self._terms: list[Term] = []
        self._learned = False
        self._composed: set[tuple[int, ...]] = set()
        #: The same without the last probe: the only rule of a column stays so if it holds there.
        self._before = before if before is not None and before.probes == self.probes[:-1] else None
        if before is not None:
            before._before = None

    def candidates(self, values: tuple[int, ...]) -> list[str]:
        """All rules that agree with every probe, the simplest first."""
        known = self._known.get(values)
        if known is None:
            found = self._still(values) or itertools.islice(self._forms(values), _MOST_RIVALS)
            known = self._known[values] = list(dict.fromkeys(found))
        return known

    def _still(self, values: tuple[int, ...]) -> list[str]:
        """The only rule that there was before the last probe, if it has held."""
        start = values[:-1]
        known = self._before._known.get(start, []) if self._before is not None else []
        if self._before is None or len(known) != 1:
            return []
        if value_of(known[0], self.probes[-1]) != values[-1]:
            return []
        if start in self._before._composed:
            self._composed.add(values)
        return known

    def best(self, values: tuple[int, ...]) -> str | None:
        """The simplest rule; None if none fits, or another does that differs elsewhere."""
        if self.is_composed(values) and self.held < CHECKS:
            return None
        return self._settled(values)

    def is_composed(self, values: tuple[int, ...]) -> bool:
        """Whether its rules are made of those of other places."""
        return bool(self.candidates(values)) and values in self._composed

    def _settled(self, values: tuple[int, ...]) -> str | None:
        found = self.candidates(values)
        # `ceil(H/224)` and `H//225 + 1` differ at 449 alone: of what is the same at all sizes that
        # are compared, what a program does has the fewest parts.
        return min(found, key=_parts) if found and not self.splits(values) else None

    def splits(self, values: tuple[int, ...]) -> dict[int, float]:
        """Of the other sizes, those where rules differ: the share that a run there rules out."""
        found = self.candidates(values)
        return self.others.splits(found) if len(found) > 1 else {}

    def learn(self, columns: Iterable[tuple[int, ...]], *, asked: bool = False) -> None:
        """Look for rules of what has none among those over the rules of the others.

        `asked`: take the rules of all, for columns of other runs (`of`).
        """
        columns = list(columns)
        without = sum(not self.candidates(values) for values in columns)
        if without > _MOST_OPEN or (not without and not asked):
            return
        self._learned = True
        known: set[tuple[int, ...]] = set()
        for _ in range(_TURNS):
            before = len(self._terms)
            for values in columns:
                if values in known:
                    continue
                if not self.candidates(values):
                    del self._known[values]  # there may be more terms now
                text = self._settled(values)
                if text is not None:
                    known.add(values)
                    self._take(text, values)
            if len(self._terms) == before or len(known) == len(columns):
                break

    def _take(self, text: str, values: tuple[int, ...]) -> None:
        if len(self._terms) < _MOST_TERMS and len(set(values)) > 1 and text not in self.symbols:
            self._terms.append(Term(text, values))
            self._fits.clear()

    def of(self, runs: Sequence[int]) -> Fit:
        """The same with some of the runs only."""
        held = sum(index >= len(self.probes) - self.held for index in runs)
        probes = [self.probes[index] for index in runs]
        found = Fit(probes, self.multiples, self.others, held=held)
        found._learned = self._learned
        found._terms = [
            Term(each.text, tuple(each.values[index] for index in runs)) for each in self._terms
        ]
        return found

    def _holds(self, text: str, values: tuple[int, ...]) -> bool:
        return all(value_of(text, probe) == value for probe, value in zip(self.probes, values))

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
                for form in (self._floors, clamped, remainders)
                for t in form(text, xs, values)
            ),
            lambda: self._own_factor(values),
            lambda: self._pairs(values, self._common),
            lambda: self._sums([Term(text, xs) for text, xs in products], values),
        ):
            found = [text for text in tier() if self._holds(text, values)]
            if found:
                yield from found
                return
        if self._learned:
            yield from self._over_terms(values)

    def _over_terms(self, values: tuple[int, ...]) -> Iterator[str]:
        """The same forms, and some rarer ones, over the rules of other places."""
        found_by = len(values) - self.held
        start = values[:found_by]

        def known(terms: Iterable[Term]) -> list[Term]:
            return [Term(each.text, each.values[:found_by]) for each in terms]

        terms = [*self._symbol_terms(found_by), *known(self._terms)]
        paired = [each for each in terms if len(symbols_of(each.text)) == 1]
        # Sizes are multiplied more often than paddings, of which there are several for each.
        paired = sorted(paired, key=lambda each: "%" in each.text)[:_MOST_PAIRED]
        pairs = list(itertools.combinations(paired, 2))
        flat = [each for each in terms if len(symbols_of(each.text)) == 2][:_MOST_IN_TOTALS]
        factors = {name: known(each) for name, each in self._all.items()}
        quotients = {name: known(each) for name, each in self._common.items()}
        for tier in (
            lambda: (t for x in terms for t in multiples(x.text, x.values, start)),
            lambda: (
                t
                for x in terms
                for form in (floors, clamped, remainders)
                for t in form(x.text, x.values, start)
            ),
            lambda: self._own_factor(values, learned=True),
            lambda: (t for i, x in enumerate(paired) for t in products([x], paired[i:], start)),
            lambda: (t for x in terms for t in floors(x.text, x.values, start, rare=True)),
            lambda: (t for one, two in pairs for t in extremes(one, two, start)),
            lambda: (
                t
                for count in range(2, _LONGEST_TOTAL + 1)
                for each in itertools.combinations(flat, count)
                for t in total(each, start)
            ),
            lambda: (t for one, two in pairs for t in sums(one, two, start)),
            lambda: self._pairs(start, factors),
            lambda: (
                t
                for first, second in itertools.combinations(self.symbols, 2)
                for one, two in itertools.product(quotients[first], quotients[second])
                for t in sums(one, two, start)
            ),
        ):
            found = [text for text in tier() if self._holds(text, values)]
            if found:
                self._composed.add(values)
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
        found = line(xs, values)
        if found is None:
            return
        slope, offset = found
        if offset.denominator != 1:
            return
        if slope.denominator == 1:
            yield _sum(times(int(slope), text), int(offset))
        elif self.multiples.get(text, 1) % slope.denominator == 0:
            quotient = f"{text}/{slope.denominator}"
            yield _sum(times(slope.numerator, quotient), int(offset))

    def _floors(self, text: str, xs: tuple[int, ...], values: tuple[int, ...]) -> Iterator[str]:
        if self.multiples.get(text, 1) > 1 and any(True for _ in self._affine(text, xs, values)):
            return
        yield from floors(text, xs, values)

    def _factors(self, name: str, *, rare: bool) -> Iterator[Term]:
        """Rules in one symbol that are multiplied with others: floors and ceils, or rarer ones."""
        xs = [probe[name] for probe in self.probes]
        multiple = self.multiples.get(name, 1)
        if not rare:
            yield Term(name, tuple(xs))
        for c in (1, 2, -1, -2) if rare else ():
            yield Term(f"({_sum(name, c)})", tuple(x + c for x in xs))
        for divisor in DIVISORS:
            if multiple % divisor == 0:
                if rare:
                    continue
                yield Term(f"({name}/{divisor})", tuple(x // divisor for x in xs))
                continue
            for shift in range(1, min(divisor - 1, 8)) if rare else (0, divisor - 1):
                ys = tuple((x + shift) // divisor for x in xs)
                if len(set(ys)) > 1:
                    text = floor_text(name, shift, divisor, 1, 0)
                    yield Term(text if text.startswith("ceil(") else f"({text})", ys)

    def _without(self, name: str, *, learned: bool) -> Fit:
        """The same probes as if they had not this symbol."""
        found = self._fits.get((name, learned))
        if found is None:
            found = self._fits[name, learned] = Fit(self.probes, self.multiples, held=self.held)
            found.symbols = tuple(other for other in self.symbols if other != name)
            found._learned = learned
            if learned:
                found._terms = [each for each in self._terms if name not in symbols_of(each.text)]
        return found

    def _own_factor(self, values: tuple[int, ...], *, learned: bool = False) -> Iterator[str]:
        """B*(...): a symbol that divides every value, times a rule in the others."""
        if len(self.symbols) < 2:
            return
        for name in self.symbols:
            xs = [probe[name] for probe in self.probes]
            if any(value % x for value, x in zip(values, xs)):
                continue
            rest = tuple(value // x for value, x in zip(values, xs))
            for text in self._without(name, learned=learned).candidates(rest):
                yield f"{name}*{as_factor(text)}"

    @cached_property
    def _common(self) -> dict[str, list[Term]]:
        return {name: list(self._factors(name, rare=False)) for name in self.symbols}

    @cached_property
    def _all(self) -> dict[str, list[Term]]:
        rare = {name: list(self._factors(name, rare=True)) for name in self.symbols}
        return {name: [*self._common[name], *rare[name]] for name in self.symbols}

    def _pairs(self, values: tuple[int, ...], factors: dict[str, list[Term]]) -> Iterator[str]:
        symbols = {each.text: each for each in self._symbol_terms(len(values))}
        for first, second in itertools.combinations(self.symbols, 2):
            yield from quotient_products(
                symbols[first], symbols[second], factors[first], factors[second], values
            )
        for name in self.symbols:  # a square of a rule: windows of one symbol
            for one in factors[name]:
                yield from products([one], [one], values)

    def _symbol_terms(self, found_by: int) -> list[Term]:
        probes = self.probes[:found_by]
        return [Term(name, tuple(probe[name] for probe in probes)) for name in self.symbols]

    def _sums(self, terms: list[Term], values: tuple[int, ...]) -> Iterator[str]:
        if len(self.probes) >= 4:
            for one, two in itertools.combinations(terms, 2):
                yield from sums(one, two, values)
