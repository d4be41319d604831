"""Runs a call at several sizes until its shapes are known: the middle of the trace.

The first plan whose sizes run is taken; the sizes that crashed are kept as facts. Then the rules
are fitted (`fitting`), with more runs until they are sure (`settling`). If values were asked for,
all is done again with the other truth value, and both are shown.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .fitting import Fit
from .kept import Kept
from .machines import others
from .recorder import Observation
from .running import Run, Target, run
from .settling import Seen, Settling, fit_one, tells
from .sizes import Plan, fits, fixed_plan, plans
from .snapshots import form_of

#: For sizes that are tried one by one.
_REPAIR_SECONDS = 4.0
_LARGEST_SIDE = 400


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
    before = Kept(target.module, target.recorder.file)
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
            return _known(_repaired(target, plan), plan, runs, limits, before)
        if len(runs) >= 3 and partly is None:
            # Most likely multiples of something: the plan with these says so.
            partly = plan, runs
        if crashed and isinstance(crashed[-1].error, (SystemExit, MemoryError)):
            break
    if partly:
        return _known(target, *partly, limits, before)
    plan = _fitting_sides(target, limits, crashed)
    if plan is None:
        return Failed(target, crashed)
    runs = [run(target, sizes, count=not index) for index, sizes in enumerate(plan.probes)]
    if any(each.error for each in runs):
        return Failed(target, crashed)
    return _known(_repaired(target, plan), plan, runs, limits, before)


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
    before: Kept,
) -> Probed:
    plan = dataclasses.replace(plan, probes=tuple(each.sizes for each in runs))
    if target.example and target.example not in plan.probes and plan.allows(target.example):
        # What the program does is shown as it is: a loop may turn once in the small.
        result = run(target, target.example)
        if result.error is None:
            runs = [*runs, result]
    settling = Settling(target, plan, runs, limits, before)
    settling.settle()
    runs, seen = settling.runs, settling.seen(settling.runs)
    assumed = runs[0].assumptions
    if assumed and any(value in ("True", "False") for value in assumed.made.values()):
        other = [settling.run(each.sizes, truth=False) for each in runs]
        if all(each.error is None for each in other):
            seen = _both(seen, runs, settling.seen(other), other)
    for casting in range(1, _cast_by_machines(target, runs)):
        other = [settling.run(each.sizes, casting=casting) for each in runs]
        if all(each.error is None for each in other):
            seen = _both(seen, runs, _uncounted(settling.seen(other)), other)
    outputs = [each.output for each in runs]
    output = fit_one(settling.fit, [Observation(-1, o, ()) for o in outputs if o is not None])
    seen = {site: s for site, s in seen.items() if s and settling.holds_later(site, s)}
    return Probed(target, plan, runs, seen, output, settling.fit)


def _cast_by_machines(target: Target, runs: Sequence[Run]) -> int:
    """How many autocasts it is to be run under, with those that other machines would have."""
    first = target.castings[0]
    for machine in others(set().union(*(each.hanging for each in runs))):
        if (first[0], machine) not in target.castings:
            target.castings += ((first[0], machine),)
    return len(target.castings)


def _uncounted(seen: dict[int, list[Seen]]) -> dict[int, list[Seen]]:
    """What is had in the place of something else, not besides."""
    return {
        site: [dataclasses.replace(each, count=0) for each in found] for site, found in seen.items()
    }


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
        if not one[site] and not tells(other[site], site, runs):
            result[site] = []
        if not other[site] and not tells(one[site], site, other_runs):
            result[site] = []
    return result
