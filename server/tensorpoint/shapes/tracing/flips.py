"""The other side of each branch: a run at sizes that lead there, and what fails in it.

The FX pass has the conditions on sizes that the call met on its way. Each is turned once, by sizes
that a solver finds: the conditions before it hold, it does not. N branches take N runs where paths
are 2^N; the runs are those of `running`, without data, a few milliseconds each.

- What fails at the other side is a fault if real tensors fail there too.
- A branch within a branch is seen by one more FX pass, with as many conditions turned at once as
  leave the sizes of the others alone.
- Branches that run alone may fail together. Only those are combined of which one touches what the
  other reads: a value whose shape is not what the rules of the first way say, or a name that is
  bound on the other side only. `y = y * 2` touches nothing.

Conditions of torch's own (does it broadcast, is it contiguous) are turned after those of the file,
and only towards larger sizes: every convolution fails for images that are too small.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...wire.shapes import Condition, Question, ShapeDiagnostic, names_in
from .errors import Fault, fault_of
from .expressions import value_of
from .faults import confirmed, constants, diagnostic, said
from .inputs import Sizes
from .modes import TooLong
from .probing import Probed
from .rewriting import Site, Source
from .running import Run, run
from .snapshots import form_of, sizes_of
from .symbolic import Symbolic, conditions_of, trace_symbolic

#: Asks for sizes: a `Question` as JSON has it; answers sizes, or None for each that has none.
Ask = Callable[[Any], Any]

_MOST, _MOST_OF_TORCH = 64, 24
_MOST_TOGETHER = 64
_PASSES = 3

#: A name that a piece of code binds or reads: within which function, and the name; attributes of
#: `self` are anyone's.
_Name = tuple[str, str]


@dataclass
class Flip:
    """Conditions that are turned, the run that turned them, and what it touched and read."""

    conditions: tuple[Condition, ...]
    run: Run
    changed: set[_Name] = field(default_factory=set[_Name])
    read: set[_Name] = field(default_factory=set[_Name])


@dataclass(frozen=True)
class Way:
    """A way through the code: sizes that go it, what they met, and what was turned to get there."""

    sizes: Sizes
    path: list[Condition]
    turned: tuple[Condition, ...]


class Flips:
    """The search for one call. `limits` are those that its sizes have to keep to, as SMT-LIB 2."""

    def __init__(
        self,
        probed: Probed,
        source: Source,
        sites: Sequence[Site],
        limits: tuple[str, ...],
        ask: Ask,
        seconds: float,
    ) -> None:
        self._probed, self._source, self._sites = probed, source, sites
        self._limits = (*limits, *(f"(= {n} {size})" for n, size in probed.plan.fixed.items()))
        self._ask = ask
        self._end = time.monotonic() + seconds
        self._names = [_names(site) for site in sites]
        self._base = probed.runs[0].sizes
        self._first = {each.site for each in probed.runs[0].observations}
        self._read_at_first = {name for site in self._first for name in self._names[site]}
        #: Runs that were made.
        self.runs = 0
        #: Conditions on whose other side something else comes out of the call.
        self.deciding: list[Condition] = []

    @property
    def _left(self) -> float:
        return self._end - time.monotonic()

    def faults(self, symbolic: Symbolic) -> Iterator[ShapeDiagnostic]:
        """What fails on the other sides, one for each place."""
        places: set[Any] = set()
        known: set[str] = set()
        way = Way(self._base, [*conditions_of(symbolic)], ())
        for _ in range(_PASSES):
            new = [each for each in way.path if each.smt not in known]
            known |= {each.smt for each in way.path}
            passed: list[Flip] = []
            failed: list[Flip] = []
            for flip in self._turned(way, [(each,) for each in self._worth(new)]):
                (failed if flip.run.error else passed).append(flip)
            for flip in passed:
                self._compare(flip)
                if not way.turned and flip.conditions[0].own and self._differs(flip.run):
                    self.deciding += flip.conditions
            together = [tuple(c for flip in each for c in flip.conditions) for each in _met(passed)]
            failed += [
                flip for flip in self._turned(way, together[:_MOST_TOGETHER]) if flip.run.error
            ]
            for flip in failed:
                found = self._fault(flip, way)
                if found is not None and found.span not in places:
                    places.add(found.span)
                    yield found
            sizes, turned = _merged([flip for flip in passed if flip.conditions[0].own], way.sizes)
            if not turned or self._left <= 0:
                return
            deeper = trace_symbolic(self._probed, self._source, self._left, sizes)
            way = Way(sizes, [*conditions_of(deeper)], (*way.turned, *turned))

    def _worth(self, conditions: list[Condition]) -> list[Condition]:
        """Those of the file, then, where the inputs were said, some of torch's."""
        own = [each for each in conditions if each.own][:_MOST]
        if not said(self._probed.target):
            return own
        return own + [each for each in conditions if not each.own][:_MOST_OF_TORCH]

    def _turned(
        self, way: Way, wanted: Sequence[tuple[Condition, ...]], *limits: str
    ) -> Iterator[Flip]:
        """Runs at sizes where those conditions do not hold."""
        if not wanted or self._left <= 0:
            return
        index = {each: place for place, each in enumerate(way.path)}
        question = Question(
            way.sizes,
            (*self._limits, *limits),
            tuple(each.smt for each in way.path),
            tuple(tuple(index[each] for each in group) for group in wanted),
        )
        for group, sizes in zip(wanted, self._ask(dataclasses.asdict(question))):
            if self._left <= 0:
                return
            if sizes is None or not (all(each.own for each in group) or _larger(sizes, way.sizes)):
                continue
            result = self._run(sizes)
            if not isinstance(result.error, TooLong):
                yield Flip(group, result)

    def _run(self, sizes: Sizes) -> Run:
        self.runs += 1
        return run(self._probed.target, sizes, seconds=self._left)

    # -- faults

    def _fault(self, flip: Flip, way: Way) -> ShapeDiagnostic | None:
        target = self._probed.target
        fault = _fault_of(flip.run, self._source)
        if fault is None or (not said(target) and not self._constant(fault, flip, way)):
            return None
        if way.turned:
            result = self._least(flip.run, fault)
            fault = _fault_of(result, self._source) or fault
            flip = Flip(flip.conditions, result)
        sizes = flip.run.sizes
        if not confirmed(target, sizes, fault, self._source):
            return None
        changed = {name: size for name, size in sizes.items() if size != self._base[name]}
        turned = [each for each in way.turned if names_in(each.smt) & changed.keys()]
        rule = " and ".join(dict.fromkeys(each.opposite for each in (*turned, *flip.conditions)))
        at = ", ".join(f"{name} = {size}" for name, size in changed.items())
        return diagnostic(fault, "warning", sizes, self._source, f"fails when {rule} ({at})")

    def _least(self, failed: Run, fault: Fault) -> Run:
        """The same fault with as many sizes as they were at first as can be."""
        for name, size in self._base.items():
            if failed.sizes[name] != size and self._left > 0:
                less = self._run({**failed.sizes, name: size})
                found = _fault_of(less, self._source)
                if found is not None and found.span == fault.span:
                    failed = less
        return failed

    def _constant(self, fault: Fault, flip: Flip, way: Way) -> bool:
        """Whether no size of the guessed inputs could mend it: it clashes alike at other sizes."""
        if set(fault.clash) & constants(self._probed.target):
            return False
        sizes = flip.run.sizes
        changed = [name for name, size in sizes.items() if size != way.sizes[name]]
        others = tuple(f"(distinct {name} {sizes[name]})" for name in changed)
        tries = [(way, others), *((replace(way, sizes=r.sizes), ()) for r in self._probed.runs[1:])]
        for other, limits in tries:
            for again in self._turned(other, [flip.conditions], *limits):
                if again.run.sizes == sizes:
                    continue
                second = _fault_of(again.run, self._source)
                alike = second is not None and second.clash == fault.clash
                return alike and second is not None and second.span == fault.span
        return False

    # -- what touches what

    def _differs(self, other: Run) -> bool:
        """Whether what comes out is not what the rules of the first way say."""
        said = self._probed.output
        if said is None or other.output is None or form_of(said.snapshot) != form_of(other.output):
            return True
        try:
            expected = tuple(value_of(dim, other.sizes) for dim in said.dims)
        except NameError:  # a number that values decide about
            return False
        return expected != sizes_of(other.output)

    def _compare(self, flip: Flip) -> None:
        sizes, seen = flip.run.sizes, self._probed.seen
        expected: dict[int, set[Any]] = {}
        for site in self._first & seen.keys():
            try:
                expected[site] = {
                    (form_of(each.snapshot), tuple(value_of(dim, sizes) for dim in each.dims))
                    for each in seen[site]
                }
            except NameError:  # a number that values decide about
                continue
        for each in flip.run.observations:
            site, names = self._sites[each.site], self._names[each.site]
            if each.site not in self._first:
                flip.read |= names
                bound = names if site.kind == "target" else set[_Name]()
                flip.changed |= bound - self._read_at_first
            elif each.site in expected:
                value = (form_of(each.snapshot), sizes_of(each.snapshot))
                if value not in expected[each.site]:
                    flip.changed |= names
                    flip.read |= names


def _larger(sizes: Sizes, base: Sizes) -> bool:
    return all(size >= base[name] for name, size in sizes.items())


def _merged(flips: Iterable[Flip], base: Sizes) -> tuple[Sizes, list[Condition]]:
    """The changes of all that don't meet, the first ones first."""
    merged, turned = dict(base), list[Condition]()
    for flip in flips:
        changes = {name: size for name, size in flip.run.sizes.items() if size != base[name]}
        if all(merged[name] == base[name] for name in changes):
            merged.update(changes)
            turned += flip.conditions
    return merged, turned


def _fault_of(failed: Run, source: Source) -> Fault | None:
    return fault_of(failed.error, source) if failed.error is not None else None


def _met(flips: list[Flip]) -> Iterator[tuple[Flip, ...]]:
    """Pairs of which one touches what the other reads, then all that hang together."""
    pairs = [
        (one, other)
        for one, other in itertools.combinations(flips, 2)
        if one.changed & other.read or other.changed & one.read
    ]
    yield from pairs
    if len(pairs) > 1:
        yield tuple(flip for flip in flips if any(flip in pair for pair in pairs))


def _names(site: Site) -> set[_Name]:
    """The names in the text of a site."""
    try:
        tree = ast.parse(site.name, mode="eval")
    except SyntaxError:
        return set()
    found: set[_Name] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(("", ast.unparse(node)))
        elif isinstance(node, ast.Name) and node.id != "self":
            found.add((site.owner, node.id))
    return found
