"""Runs a call at several sizes until its shapes are known: the middle of the trace.

The first plan whose sizes run is taken; the sizes that crashed are kept as facts. Then the rules
are fitted (`fitting`), and while two rules fit that would differ elsewhere, one more run is made
there. If values were asked for, all is done again with the other truth value, and both are shown.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .fitting import Fit, value_of
from .inputs import Sizes
from .modes import found_size
from .recorder import ModuleCall, Observation, Path
from .running import Run, Target, run
from .sizes import Plan, fits, fixed_plan, plans
from .snapshots import Snapshot, form_of, sizes_of

_MOST_ADDED = 8
#: For sizes that are tried one by one.
_REPAIR_SECONDS = 4.0
_LARGEST_SIDE = 400


@dataclass(frozen=True)
class Seen:
    """One distinct value at a site, as expressions in the order of `sizes_of(snapshot)`."""

    snapshot: Snapshot
    dims: tuple[str, ...]
    path: Path
    count: int
    call: ModuleCall | None = None


@dataclass
class Probed:
    """What is known of a target after its runs."""

    target: Target
    plan: Plan
    runs: list[Run]
    #: By the number of the site, in the order of their first value.
    seen: dict[int, list[Seen]]
    output: Seen | None
    fit: Fit

    @property
    def flops(self) -> int:
        """At the sizes of the first run."""
        return self.runs[0].flops


@dataclass
class Failed:
    """No sizes were found at which it runs."""

    target: Target
    crashed: list[Run]


def probe(target: Target, limits: Sequence[str] = ()) -> Probed | Failed:
    """Run until the shapes are known."""
    crashed: list[Run] = []
    partly: tuple[Plan, list[Run]] | None = None
    for plan in plans(target.symbols, limits):
        runs: list[Run] = []
        for sizes in plan.probes:
            result = run(target, sizes, count=not runs)
            if result.error is None:
                runs.append(result)
                continue
            crashed.append(result)
            if not runs or partly or isinstance(result.error, (SystemExit, MemoryError)):
                break
        if len(runs) == len(plan.probes) and (not plan.fixed or _keeps_batch(runs)):
            return _known(_repaired(target, plan), plan, runs, limits)
        if len(runs) >= 3 and partly is None:
            # Most likely multiples of something: the plan with these says so.
            partly = plan, runs
        if crashed and isinstance(crashed[-1].error, (SystemExit, MemoryError)):
            break
    if partly:
        return _known(target, *partly, limits)
    plan = _fitting_sides(target, limits, crashed)
    if plan is None:
        return Failed(target, crashed)
    runs = [run(target, sizes, count=not index) for index, sizes in enumerate(plan.probes)]
    if any(each.error for each in runs):
        return Failed(target, crashed)
    return _known(_repaired(target, plan), plan, runs, limits)


def _fitting_sides(target: Target, limits: Sequence[str], crashed: list[Run]) -> Plan | None:
    """The smallest sides, or length, with which a guessed input runs and keeps its batch.

    What fixes them is a layer that takes all that is left, `Linear(8 * 21 * 21)`: each size is
    tried, at 2 to 10 ms, which needs no symbols and is exact.
    """
    free = [name for name in target.symbols if name != "B"]
    sides = free if set(free) <= {"H", "W"} else free if len(free) == 1 else []
    guessed = all(each.origin == "first use" and not each.blind for each in target.inputs)
    if not sides or not guessed or not any(isinstance(r.error, RuntimeError) for r in crashed):
        return None
    end = time.monotonic() + _REPAIR_SECONDS
    for side in range(1, _LARGEST_SIDE):
        plan = fixed_plan(target.symbols, dict.fromkeys(sides, side))
        if time.monotonic() > end:
            return None
        result = run(target, plan.probes[0], record=False)
        if result.error is None and _keeps_batch([result]):
            return plan if all(fits(limits, sizes) for sizes in plan.probes) else None
    return None


def _keeps_batch(runs: Sequence[Run]) -> bool:
    """Whether what comes out has the batch first, if it is a tensor: `view(-1, 320)` may not."""
    return all(
        each.output is None
        or each.output[0] != "T"
        or not each.output[1]
        or each.output[1][0] == each.sizes.get("B", each.output[1][0])
        for each in runs
    )


def _repaired(target: Target, plan: Plan) -> Target:
    """The target, whose guessed inputs say that their sizes were tried."""
    if plan.fixed:
        target.inputs = tuple(
            dataclasses.replace(each, origin="repair")
            if each.origin == "first use" and set(each.symbols()) & plan.fixed.keys()
            else each
            for each in target.inputs
        )
    return target


def _known(
    target: Target,
    plan: Plan,
    runs: list[Run],
    limits: Sequence[str],
) -> Probed:
    plan = dataclasses.replace(plan, probes=tuple(each.sizes for each in runs))
    if target.example and target.example not in plan.probes and plan.allows(target.example):
        # What the program does is shown as it is: a loop may turn once in the small.
        result = run(target, target.example)
        if result.error is None:
            runs = [*runs, result]
    found = [name for name in runs[0].all_sizes if name not in runs[0].sizes]
    allowed = [{**s, **{name: found_size(s, name) for name in found}} for s in plan.more(limits)]
    for _ in range(_MOST_ADDED):
        fit = _fit(runs, plan, ())
        groups = _groups(runs)
        sizes = _where_rules_differ(fit, groups, allowed)
        if sizes is None:
            break
        allowed.remove(sizes)
        result = run(target, {name: sizes[name] for name in runs[0].sizes})
        if result.error is None:
            runs.append(result)
    fit = _fit(runs, plan, allowed)
    seen = _fitted(fit, _groups(runs))
    assumed = runs[0].assumptions
    if assumed and any(value in ("True", "False") for value in assumed.made.values()):
        others = [run(target, each.sizes, truth=False) for each in runs]
        if all(each.error is None for each in others):
            seen = _both(seen, runs, _fitted(fit, _groups(others)), others)
    outputs = [each.output for each in runs]
    output = _fit_one(fit, [Observation(-1, o, ()) for o in outputs if o is not None])
    return Probed(target, plan, runs, {site: s for site, s in seen.items() if s}, output, fit)


def _fit(runs: list[Run], plan: Plan, others: Sequence[Sizes]) -> Fit:
    common = set.intersection(*(set(each.all_sizes) for each in runs))
    probes = [{n: s for n, s in each.all_sizes.items() if n in common} for each in runs]
    return Fit(probes, plan.multiples, others)


#: Values at one site that belong together: one of each run.
_Group = list[Observation]


def _groups(runs: list[Run]) -> dict[int, list[_Group] | None]:
    """For each site its values side by side; None where the runs can't be compared."""
    columns: list[dict[int, list[Observation]]] = []
    for each in runs:
        column: dict[int, list[Observation]] = {}
        for observation in each.observations:
            column.setdefault(observation.site, []).append(observation)
        columns.append(column)
    result: dict[int, list[_Group] | None] = {}
    for site in dict.fromkeys(site for column in columns for site in column):
        lists = [column.get(site, []) for column in columns]
        # A loop over a dim runs longer in one probe than in another: its distinct values count.
        if len({len(each) for each in lists}) != 1:
            lists = [_distinct(each) for each in lists]
        if len({len(each) for each in lists}) != 1:
            result[site] = None
            continue
        result[site] = [list(group) for group in zip(*lists)]
    return result


def _distinct(observations: list[Observation]) -> list[Observation]:
    found: dict[Snapshot, Observation] = {}
    for each in observations:
        known = found.get(each.snapshot)
        if known is None:
            found[each.snapshot] = dataclasses.replace(each)
        else:
            known.times += each.times
    return list(found.values())


def _where_rules_differ(
    fit: Fit, groups: dict[int, list[_Group] | None], allowed: Sequence[Sizes]
) -> Sizes | None:
    votes: dict[int, int] = {}
    done: set[tuple[int, ...]] = set()
    for site_groups in groups.values():
        for group in site_groups or ():
            for values in _columns(group) or ():
                if values in done:
                    continue
                done.add(values)
                sizes = fit.apart(values, allowed)
                if sizes is not None:
                    index = next(i for i, each in enumerate(allowed) if each is sizes)
                    votes[index] = votes.get(index, 0) + 1
    return allowed[max(votes, key=votes.__getitem__)] if votes else None


def _columns(group: _Group) -> list[tuple[int, ...]] | None:
    """For each dim its values in all runs; None if the values differ in more than sizes."""
    forms = {form_of(each.snapshot) for each in group}
    if len(forms) != 1:
        return None
    return list(zip(*(sizes_of(each.snapshot) for each in group)))


def _both(
    one: dict[int, list[Seen]],
    runs: list[Run],
    other: dict[int, list[Seen]],
    other_runs: list[Run],
) -> dict[int, list[Seen]]:
    """What either truth value leads to.

    What no rule fits in one of them stays unknown, but for what that of the other tells: a mask of
    a window is there with either, or with one in the long runs only.
    """
    result = {**other, **one}
    for site in one.keys() & other.keys():
        texts = {(form_of(each.snapshot), each.dims) for each in one[site]}
        more = [v for v in other[site] if (form_of(v.snapshot), v.dims) not in texts]
        result[site] = [*one[site], *more]
        if not one[site] and not _tells(other[site], site, runs):
            result[site] = []
        if not other[site] and not _tells(one[site], site, other_runs):
            result[site] = []
    return result


def _tells(seen: list[Seen], site: int, runs: list[Run]) -> bool:
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


def _fitted(fit: Fit, groups: dict[int, list[_Group] | None]) -> dict[int, list[Seen]]:
    """What each site that was reached has had; nothing where a value has no rule."""
    seen: dict[int, list[Seen]] = {}
    for site, site_groups in groups.items():
        found: dict[object, Seen] = {}
        for group in site_groups or ():
            one = _fit_one(fit, group)
            if one is None:
                found = {}
                break
            key = (form_of(one.snapshot), one.dims)
            known = found.get(key)
            found[key] = dataclasses.replace(known, count=known.count + one.count) if known else one
        seen[site] = list(found.values())
    return seen


def _fit_one(fit: Fit, group: _Group) -> Seen | None:
    if len(group) < len(fit.probes):
        return None
    columns = _columns(group)
    if columns is None:
        return None
    dims: list[str] = []
    for values in columns:
        text = fit.best(values)
        if text is None:
            return None
        dims.append(text)
    return Seen(group[0].snapshot, tuple(dims), group[0].path, group[0].times, group[0].call)
