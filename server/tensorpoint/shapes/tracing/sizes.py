"""The sizes at which a call is tried: odd ones first, then those that more programs take.

A plan says for each symbol what its sizes are, one for each probe. Where odd sizes crash, multiples
of 2, 4, ... 64 are taken, and the crash is kept: it is a counter-example to what the file promises.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .inputs import Input, Sizes, limits_on

PROBES = 5
#: With fewer any rule would do.
_FEWEST = 3
#: Turns of the divisors of limits among which sizes are chosen.
_SPREAD = 64
#: Divisors of limits may have so many sizes in common: some 10 ms.
_LONGEST_TURN = 1024

_SPATIAL = {
    "H": (193, 127, 256, 75, 165),
    "W": (225, 159, 320, 107, 229),
    "D": (33, 23, 40, 19, 29),
}
_BATCH = (3, 5, 7, 4, 2)
_LENGTHS = ((19, 24, 37, 65, 11), (23, 29, 17, 41, 70), (31, 22, 13, 47, 58), (21, 34, 26, 53, 15))
#: For tables of positions of 16 or so.
_SHORT_LENGTHS = ((7, 11, 13, 6, 9), (5, 8, 10, 12, 14), (6, 9, 15, 11, 8), (9, 5, 7, 13, 10))
#: For what has to be long: a waveform below kernels of 80.
_LONG_LENGTHS = (
    (1601, 2368, 1987, 3210, 1115),
    (1723, 2209, 3011, 1452, 1334),
    (2111, 1390, 1846, 2703, 1279),
    (1505, 3108, 1214, 1999, 2446),
)
#: Of sizes that rules are compared at: those in a row, and those beyond the probes'.
_CONSECUTIVE, _BEYOND = 512, 48
_COMMON_SIDES = (28, 32, 224, 64, 96, 128, 299, 84, 256)


@dataclass(frozen=True)
class Plan:
    """Sizes for the probes, and what they have in common."""

    probes: tuple[Sizes, ...]
    #: Divisors that all sizes of a symbol have.
    multiples: dict[str, int] = field(default_factory=dict[str, int])
    #: Symbols that have to be large.
    large: tuple[str, ...] = ()
    #: Symbols with one size only.
    fixed: dict[str, int] = field(default_factory=dict[str, int])

    def allows(self, sizes: Sizes) -> bool:
        """Whether these are of the same kind."""
        return all(
            size == self.fixed.get(name, size) and size % self.multiples.get(name, 1) == 0
            for name, size in sizes.items()
        )

    def compared(self, limits: Sequence[str]) -> tuple[list[Sizes], list[Sizes]]:
        """Sizes at which rules are compared, up to the largest probe's and beyond.

        Each size between the smallest and the largest of a symbol comes up (of thousands some, and
        the last hundreds): `(H + 3)//16` and `(H + 4)//16` differ at one of sixteen sizes. All of
        2 to 7 batches are too few for that, and a rule that begins to count at 60 may do so at any.
        """
        draw = random.Random(7)
        columns: dict[str, tuple[list[int], list[int]]] = {}
        for name in self.probes[0]:
            step = self.multiples.get(name, 1)
            values = [probe[name] // step for probe in self.probes]
            low, high = min(values), max(values)
            inside = [*range(max(low, high - _CONSECUTIVE), high + 1)]
            if low < inside[0]:
                inside += draw.choices(range(low, inside[0]), k=_BEYOND)
            beyond = [draw.randint(high + 1, 2 * high + 1) for _ in range(_BEYOND)]
            if name in self.fixed:
                inside = beyond = [self.fixed[name]]
            draw.shuffle(inside)
            columns[name] = [each * step for each in inside], [each * step for each in beyond]
        found: list[list[Sizes]] = []
        for part in (0, 1):
            length = max((len(column[part]) for column in columns.values()), default=0)
            every = [
                {name: column[part][i % len(column[part])] for name, column in columns.items()}
                for i in range(length)
            ]
            found.append([sizes for sizes in every if fits(limits, sizes)])
        return found[0], found[1]

    def more(self, limits: Sequence[str], count: int = 60) -> list[Sizes]:
        """Other sizes of the same kind, to tell rules apart."""
        draw = random.Random(7)
        found: list[Sizes] = []
        for _ in range(count):
            sizes: Sizes = {}
            for name in self.probes[0]:
                step = self.multiples.get(name, 1)
                values = [probe[name] // step for probe in self.probes]
                low, high = min(values), max(values)
                sizes[name] = self.fixed.get(name) or draw.randint(low, high) * step
            if fits(limits, sizes):
                found.append(sizes)
        return found


def plans(symbols: Sequence[str], limits: Sequence[str]) -> Iterator[Plan]:
    """What to try, in order."""
    usual = _plan(symbols, _LENGTHS, 1)
    if sum(fits(limits, sizes) for sizes in usual.probes) < _FEWEST:
        within = _within(symbols, limits, usual)
        if within is not None:
            yield within
    for plan in _plans(symbols):
        probes = tuple(sizes for sizes in plan.probes if fits(limits, sizes))
        if len(probes) >= _FEWEST or (probes and not symbols):
            yield dataclasses.replace(plan, probes=probes)


def _within(symbols: Sequence[str], limits: Sequence[str], usual: Plan) -> Plan | None:
    """The usual sizes, but for symbols whose limits leave these out."""
    columns = {name: [sizes[name] for sizes in usual.probes] for name in symbols}
    fixed: dict[str, int] = {}
    multiples: dict[str, int] = {}
    for name in symbols:
        own = limits_on(limits, {name})
        if all(fits(own, {name: size}) for size in columns[name]):
            continue
        turn, near = _near_bounds(own)
        low = next((size for size in near if fits(own, {name: size})), None)
        if low is None:
            return None
        tried = sorted({*near, *range(low, low + turn * _SPREAD, turn)})
        allowed = [size for size in tried if fits(own, {name: size})]
        few = allowed[:: -(-len(allowed) // PROBES)]
        columns[name] = [size for size, _ in zip(itertools.cycle(few), usual.probes)]
        if len(allowed) == 1:
            fixed[name] = low
        elif turn > 1 and all(size % turn == 0 for size in allowed):
            multiples[name] = turn
    probes = [{name: columns[name][i] for name in symbols} for i in range(len(usual.probes))]
    return Plan(tuple(probes), multiples, fixed=fixed)


def _plans(symbols: Sequence[str]) -> Iterator[Plan]:
    yield _plan(symbols, _LENGTHS, 1)
    if not any(name != "B" for name in symbols):
        return
    yield _plan(symbols, _SHORT_LENGTHS, 1, {name: 1 for name in symbols if name in _SPATIAL})
    lengths = tuple(name for name in symbols if name != "B" and name not in _SPATIAL)
    for step in (2, 4, 8, 16, 32, 64):
        if step == 16 and lengths:
            # Multiples of 16 are long: if that is what it takes, they need not be multiples.
            yield dataclasses.replace(_plan(symbols, _LONG_LENGTHS, 1), large=lengths)
        yield _plan(symbols, _SHORT_LENGTHS, step, {"B": 1})
    sides = [name for name in symbols if name in ("H", "W")]
    if sides:
        for side in _COMMON_SIDES:
            yield fixed_plan(symbols, dict.fromkeys(sides, side))


def fixed_plan(symbols: Sequence[str], fixed: Sizes) -> Plan:
    """Some symbols with one size, the others as usual."""
    plan = _plan(symbols, _LENGTHS, 1)
    return Plan(tuple({**sizes, **fixed} for sizes in plan.probes), fixed=fixed)


def _plan(
    symbols: Sequence[str],
    lengths: Sequence[tuple[int, ...]],
    step: int,
    steps: dict[str, int] | None = None,
) -> Plan:
    columns: dict[str, tuple[int, ...]] = {}
    others = itertools.cycle(lengths)
    multiples: dict[str, int] = {}
    for name in symbols:
        each = (steps or {}).get(name, step)
        if name == "B":
            column = _BATCH
        else:
            column = _SPATIAL.get(name) or next(others)
            if each > 1 and name in _SPATIAL:
                column = tuple((value // each or 1) * each for value in column)
            elif each > 1:
                column = tuple(value * each for value in column)
            if each > 1:
                multiples[name] = each
        columns[name] = column
    probes = [{name: columns[name][i] for name in symbols} for i in range(PROBES if symbols else 1)]
    return Plan(tuple(probes), multiples)


def fits(limits: Sequence[str], sizes: Sizes) -> bool:
    """Whether sizes keep to the limits of a specification; limits of other symbols hold."""
    return all(eval(limit, {"__builtins__": {}}, dict(sizes)) for limit in limits_on(limits, sizes))


def clash_of(limits: Sequence[str]) -> tuple[str, ...]:
    """The fewest limits of one size that no size keeps to; nothing if there is one that does."""
    of: dict[str, list[str]] = {}
    for limit in dict.fromkeys(limits):
        of.setdefault(limit.split()[0], []).append(limit)
    for name, own in of.items():
        _, tried = _near_bounds(own)
        if not tried:
            continue
        kept = {limit: {size for size in tried if fits([limit], {name: size})} for limit in own}
        for count in range(1, len(own) + 1):
            for some in itertools.combinations(own, count):
                if not set.intersection(*(kept[each] for each in some)):
                    return some
    return ()


def _near_bounds(limits: Sequence[str]) -> tuple[int, list[int]]:
    """The turn of all divisors of limits of one size, and the sizes within one of each bound.

    Between two bounds it goes on as the turn does: if any size keeps to them, one of these does.
    """
    turn = math.lcm(*(int(each.split()[2]) for each in limits if "%" in each))
    if turn > _LONGEST_TURN:
        return turn, []
    bounds = [0, *(int(each.split()[-1]) for each in limits)]
    near = {bound + more for bound in bounds for more in range(-turn - 1, turn + 2)}
    return turn, sorted(size for size in near if size > 0)


def first_sizes(inputs: Sequence[Input]) -> Sizes:
    """The first sizes that would be tried for these inputs."""
    symbols = tuple(dict.fromkeys(name for each in inputs for name in each.symbols()))
    return dict(_plan(symbols, _LENGTHS, 1).probes[0])
