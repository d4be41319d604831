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
from collections.abc import Sequence
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
_REACHED, _MOST_TRIED = 6, 8


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
        for site, place in places_of(runs).items():
            fit = self._fits.get(place.runs) or self.fit.of(place.runs)
            found: dict[object, Seen] = {}
            for group in place.groups:
                one = fit_one(fit, group)
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

    def holds_later(self, site: int, seen: list[Seen]) -> bool:
        """Whether the calls that found something kept have had what the rules say, too."""
        return tells(seen, site, self._later)

    def _keeps(self, before: Kept) -> bool:
        """Whether a second run at the same sizes does something else."""
        if all(place.groups for place in places_of(self.runs).values()):
            return False
        first = self.runs[0]
        again = run(self._target, first.sizes)
        before.restore()
        fresh = run(self._target, first.sizes)
        return again.error is None and again.observations != fresh.observations

    def _fitted(self, held: int = 0) -> Fit:
        common = set.intersection(*(set(each.all_sizes) for each in self.runs))
        probes = [{n: s for n, s in each.all_sizes.items() if n in common} for each in self.runs]
        return Fit(probes, self._plan.multiples, self._others, held=held)

    def _fit(self, *, learn: bool, held: int = 0) -> None:
        self.fit = self._fitted(held)
        every = tuple(range(len(self.runs)))
        self._columns = {every: {}}
        for place in places_of(self.runs).values():
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
        """Add runs while places have been reached by some of them, but too few."""
        for _ in range(_MOST_TRIED):
            enough = min(_REACHED, len(self.runs))
            places = places_of(self.runs, fewest=1).values()
            if not any(1 < len(each.runs) < enough and _tells_shapes(each) for each in places):
                return
            if not self._add(1):
                return

    def _add(self, count: int) -> int:
        """Runs at sizes that nothing has asked for; how many there are."""
        order = [i for i in range(self._others.beyond) if i not in self._tried]
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


def places_of(runs: Sequence[Run], fewest: int = _REACHED) -> dict[int, Place]:
    """All sites, in the order of their first value, with those that as many runs have reached."""
    columns: list[dict[int, list[Observation]]] = []
    for each in runs:
        column: dict[int, list[Observation]] = {}
        for observation in each.observations:
            column.setdefault(observation.site, []).append(observation)
        columns.append(column)
    result: dict[int, Place] = {}
    for site in dict.fromkeys(site for column in columns for site in column):
        reached = tuple(i for i, column in enumerate(columns) if site in column)
        lists = [columns[i][site] for i in reached]
        # A loop over a dim runs longer in one probe than in another: its distinct values count.
        if len({len(each) for each in lists}) != 1:
            lists = [_distinct(each) for each in lists]
        comparable = len({len(each) for each in lists}) == 1
        if not comparable or (len(reached) < len(runs) and len(reached) < fewest):
            result[site] = Place(reached, ())
            continue
        result[site] = Place(reached, tuple(list(group) for group in zip(*lists)))
    return result


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
