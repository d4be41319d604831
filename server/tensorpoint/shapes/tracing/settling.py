"""From the runs of a call to the rules of its places: adds runs until the rules are sure.

While two rules fit that would differ elsewhere, one more run is made where most of the rivals part.
Then rules for what has none are looked for among those over the other places' (`Fit.learn`), and
two more runs check these. A place that some of the runs never reach, `if pad: x = F.pad(...)`, is
fitted by those that do, if they are enough.

A module that keeps what it made is put back before each run (`kept`). Its later calls may have
other sizes: what they have had must be what the rules say.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .expressions import Elsewhere, value_of
from .fitting import CHECKS, Fit
from .inputs import Sizes
from .kept import Kept
from .modes import found_size
from .recorder import ModuleCall, Observation, Path
from .running import Run, Target, run
from .sizes import Plan
from .snapshots import Snapshot, form_of, has_tensor, sizes_of

_MOST_ADDED = 12
#: Runs that a place has to be reached in, and those that are added for that.
_REACHED, _MOST_TRIED = 6, 10
#: Values of a site that are parted by their kind.
_MOST_PARTED = 64


@dataclass(frozen=True)
class Seen:
    """One distinct value at a site, as expressions in the order of `sizes_of(snapshot)`."""

    snapshot: Snapshot
    dims: tuple[str, ...]
    path: Path
    count: int
    call: ModuleCall | None = None


#: Values at one site that belong together: one of each run.
Group = list[Observation]


@dataclass(frozen=True)
class Place:
    """The values of a site side by side; no groups where the runs can't be compared."""

    #: Which of the runs have reached it.
    runs: tuple[int, ...]
    groups: tuple[Group, ...]


class Settling:
    """The runs of one plan, and what they say. `before` is what the module was like at first."""

    def __init__(
        self, target: Target, plan: Plan, runs: list[Run], limits: Sequence[str], before: Kept
    ) -> None:
        self.runs = runs
        self._target = target
        self._plan = plan
        self._before: Kept | None = None
        #: The first runs of a module that keeps what it made.
        self._later: list[Run] = []
        if self._keeps(before):
            self._later, self._before = runs, before
            self.runs = [self.run(each.sizes) for each in runs]
            if any(each.error for each in self.runs):
                self.runs, self._later, self._before = runs, [], None
        found = [name for name in runs[0].all_sizes if name not in runs[0].sizes]
        inside, beyond = (
            [{**s, **{name: found_size(s, name) for name in found}} for s in part]
            for part in plan.compared(limits)
        )
        self._others = Elsewhere(inside, beyond)
        self._tried: set[int] = set()
        self._draw = random.Random(5)
        #: Of all runs, and of those that places are reached by, with what these have had.
        self.fit = self._fitted()
        self._fits: dict[tuple[int, ...], Fit] = {}
        self._columns: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}

    def run(self, sizes: Sizes, *, truth: bool = True, casting: int = 0) -> Run:
        """One more, of the same kind."""
        if self._before is not None:
            self._before.restore()
        sizes = {name: sizes[name] for name in self.runs[0].sizes}
        return run(self._target, sizes, truth=truth, casting=casting)

    def settle(self) -> None:
        """Add runs until no rules differ, and until those that need it are checked."""
        self._part_rivals(learn=False)
        self._reach()
        self._part_rivals(learn=True)
        if any(self._fits[r].is_composed(v) for r, c in self._columns.items() for v in c):
            self._add(CHECKS)
            self._fit(learn=True, held=CHECKS)

    def seen(self, runs: list[Run]) -> dict[int, list[Seen]]:
        """What each site that was reached has had; nothing where a value has no rule."""
        seen: dict[int, list[Seen]] = {}
        for site, places in places_of(runs).items():
            found: dict[object, Seen] = {}
            for one in self._fitted_values(places):
                if one is None:
                    found = {}
                    break
                key = (form_of(one.snapshot), one.dims)
                known = found.get(key)
                found[key] = (
                    dataclasses.replace(known, count=known.count + one.count) if known else one
                )
            seen[site] = list(found.values())
        return seen

    def _fitted_values(self, places: Sequence[Place]) -> Iterator[Seen | None]:
        for place in places:
            fit = self._fits.get(place.runs) or self.fit.of(place.runs)
            yield from (fit_one(fit, group) for group in place.groups)
            if not place.groups:
                yield None

    def holds_later(self, site: int, seen: list[Seen]) -> bool:
        """Whether the calls that found something kept have had what the rules say, too."""
        return tells(seen, site, self._later)

    def _keeps(self, before: Kept) -> bool:
        """Whether a second run at the same sizes does something else."""
        if all(place.groups for places in places_of(self.runs).values() for place in places):
            return False
        first = self.runs[0]
        again = run(self._target, first.sizes)
        before.restore()
        fresh = run(self._target, first.sizes)
        return again.error is None and again.observations != fresh.observations

    def _fitted(self, held: int = 0, before: Fit | None = None) -> Fit:
        common = set.intersection(*(set(each.all_sizes) for each in self.runs))
        probes = [{n: s for n, s in each.all_sizes.items() if n in common} for each in self.runs]
        return Fit(probes, self._plan.multiples, self._others, held=held, before=before)

    def _fit(self, *, learn: bool, held: int = 0) -> None:
        self.fit = self._fitted(held, self.fit)
        every = tuple(range(len(self.runs)))
        self._columns = {every: {}}
        for place in (each for places in places_of(self.runs).values() for each in places):
            for group in place.groups:
                for values in columns_of(group) or ():
                    self._columns.setdefault(place.runs, {})[values] = None
        if learn:
            self.fit.learn(self._columns[every], asked=len(self._columns) > 1)
        self._fits = {
            runs: self.fit if runs == every else self.fit.of(runs) for runs in self._columns
        }

    def _part_rivals(self, *, learn: bool) -> None:
        for _ in range(_MOST_ADDED):
            self._fit(learn=learn)
            index = self._where_most_part()
            if index is None:
                return
            self._try(index)
        self._fit(learn=learn)

    def _where_most_part(self) -> int | None:
        """The sizes that rule out the most rules; of places that few runs reach, any for one."""
        votes: dict[int, float] = {}
        partly: list[list[int]] = []
        for runs, columns in self._columns.items():
            for values in columns:
                splits = self._fits[runs].splits(values)
                splits = {i: share for i, share in splits.items() if i not in self._tried}
                if splits and len(runs) < len(self.runs):
                    partly.append(list(splits))
                    continue
                for index, share in splits.items():
                    votes[index] = votes.get(index, 0) + share
        if votes:
            return max(votes, key=votes.__getitem__)
        # Where both sides are asked about at once, `if h % 2 or w % 2` may be never true.
        return self._draw.choice(self._draw.choice(partly)) if partly else None

    def _reach(self) -> None:
        """Add runs while places have been reached by some of them, but too few.

        What is so in the long runs only, a window of 64 of which one run had more, is reached by
        longer ones.
        """
        for turn in range(_MOST_TRIED):
            enough = min(_REACHED, len(self.runs))
            places = [p for found in places_of(self.runs, fewest=1).values() for p in found]
            few = any(1 < len(p.runs) < enough and _tells_shapes(p) for p in places)
            if not few and not any(self._is_of_long_runs(p, enough) for p in places):
                return
            if not (turn % 2 == 0 and self._add(1, beyond=True)) and not self._add(1):
                return

    def _is_of_long_runs(self, place: Place, enough: int) -> bool:
        """Whether it was reached by the longest run alone, or cut off there."""
        if not _tells_shapes(place):
            return False
        longest = {
            max(range(len(self.runs)), key=lambda index: self.runs[index].sizes[name])
            for name in self.fit.symbols
            if name in self.runs[0].sizes
        }
        if len(place.runs) == 1:
            return place.runs[0] in longest and enough > 1
        for group in place.groups if len(place.runs) == len(self.runs) else ():
            for values in columns_of(group) or ():
                for name in self.fit.symbols:
                    sizes = [each.all_sizes[name] for each in self.runs]
                    less = [i for i, size in enumerate(sizes) if values[i] != size]
                    if len(less) == 1 and less[0] in longest and values[less[0]] < sizes[less[0]]:
                        return True
        return False

    def _add(self, count: int, *, beyond: bool = False) -> int:
        """Runs at sizes that nothing has asked for; how many there are."""
        last = len(self._others.sizes)
        every = range(self._others.beyond, last) if beyond else range(self._others.beyond)
        order = [i for i in every if i not in self._tried]
        self._draw.shuffle(order)
        return sum(self._try(index) for _, index in zip(range(count), order))

    def _try(self, index: int) -> bool:
        self._tried.add(index)
        result = self.run(self._others.sizes[index])
        if result.error is not None:
            self._others.refuse(index)
            return False
        self.runs = [*self.runs, result]
        return True


def places_of(runs: Sequence[Run], fewest: int = _REACHED) -> dict[int, list[Place]]:
    """All sites, in the order of their first value, with those that as many runs have reached.

    A site has several places where each of its values is had in other runs.
    """
    columns: list[dict[int, list[Observation]]] = []
    for each in runs:
        column: dict[int, list[Observation]] = {}
        for observation in each.observations:
            column.setdefault(observation.site, []).append(observation)
        columns.append(column)
    result: dict[int, list[Place]] = {}
    for site in dict.fromkeys(site for column in columns for site in column):
        reached = tuple(i for i, column in enumerate(columns) if site in column)
        lists = [columns[i][site] for i in reached]
        # A loop over a dim runs longer in one probe than in another: its distinct values count.
        if len({len(each) for each in lists}) != 1:
            lists = [_distinct(each) for each in lists]
        if len({len(each) for each in lists}) == 1:
            groups = tuple(list(group) for group in zip(*lists))
            found = _by_form(reached, groups) or [Place(reached, groups)]
        else:
            found = _parted(reached, lists) or [Place(reached, ())]
        result[site] = [
            each
            if len(each.runs) == len(runs) or len(each.runs) >= fewest
            else Place(each.runs, ())
            for each in found
        ]
    return result


def _by_form(reached: tuple[int, ...], groups: Sequence[Group]) -> list[Place]:
    """The values of a site that are of one kind in some runs and of another in others."""
    forms = [[form_of(each.snapshot) for each in group] for group in groups]
    if all(len(set(each)) == 1 for each in forms) or len(groups) > _MOST_PARTED:
        return []
    found: dict[tuple[int, ...], list[Group]] = {}
    for group, each in zip(groups, forms):
        for form in dict.fromkeys(each):
            having = [index for index, other in enumerate(each) if other == form]
            runs = tuple(reached[index] for index in having)
            found.setdefault(runs, []).append([group[index] for index in having])
    return [Place(runs, tuple(parts)) for runs, parts in found.items()]


def _parted(reached: Sequence[int], lists: Sequence[list[Observation]]) -> list[Place]:
    """The values of a site that some runs have fewer of: `if pad:` in blocks of 64, 80 and 96
    channels. A dim whose numbers the longest list has all parts them, if each number comes up as
    often in all runs that have it.
    """
    forms = {form_of(o.snapshot) for each in lists for o in each}
    for dim in range(len(sizes_of(lists[0][0].snapshot))) if len(forms) == 1 else ():
        parts: list[dict[int, list[Observation]]] = []
        for each in lists:
            part: dict[int, list[Observation]] = {}
            for observation in each:
                part.setdefault(sizes_of(observation.snapshot)[dim], []).append(observation)
            parts.append(part)
        every = max(parts, key=len)
        if len(every) < 2 or any(part.keys() - every.keys() for part in parts):
            continue
        found: list[Place] = []
        for number in every:
            runs = tuple(i for i, part in zip(reached, parts) if number in part)
            columns = [part[number] for part in parts if number in part]
            if len({len(each) for each in columns}) != 1:
                break
            found.append(Place(runs, tuple(list(group) for group in zip(*columns))))
        else:
            return found
    return []


def _tells_shapes(place: Place) -> bool:
    return any(has_tensor(group[0].snapshot) for group in place.groups)


def _distinct(observations: list[Observation]) -> list[Observation]:
    found: dict[Snapshot, Observation] = {}
    for each in observations:
        known = found.get(each.snapshot)
        if known is None:
            found[each.snapshot] = dataclasses.replace(each)
        else:
            known.times += each.times
    return list(found.values())


def columns_of(group: Group) -> list[tuple[int, ...]] | None:
    """For each dim its values in all runs; None if the values differ in more than sizes."""
    forms = {form_of(each.snapshot) for each in group}
    if len(forms) != 1:
        return None
    return list(zip(*(sizes_of(each.snapshot) for each in group)))


def tells(seen: list[Seen], site: int, runs: Sequence[Run]) -> bool:
    """Whether the values of a site in these runs are those that the rules say."""
    for each in runs:
        values = {
            (form_of(o.snapshot), sizes_of(o.snapshot)) for o in each.observations if o.site == site
        }
        try:
            expected = {
                (form_of(s.snapshot), tuple(value_of(dim, each.all_sizes) for dim in s.dims))
                for s in seen
            }
        except NameError:  # a number that values decide about, asked for in the other runs only
            return False
        if not values <= expected:
            return False
    return True


def fit_one(fit: Fit, group: Group) -> Seen | None:
    """The rules of one value; None if a dim of it has none."""
    if len(group) < len(fit.probes):
        return None
    columns = columns_of(group)
    if columns is None:
        return None
    dims: list[str] = []
    for values in columns:
        text = fit.best(values)
        if text is None:
            return None
        dims.append(text)
    return Seen(group[0].snapshot, tuple(dims), group[0].path, group[0].times, group[0].call)
