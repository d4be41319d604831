"""Faults of shapes that the runs have shown, each confirmed by a run at its witness.

Working code must not be accused. So a call that fails at every size is an error only if its inputs
were said (a specification, jaxtyping), or if what clashes is the same at all sizes, so that no size
of a guessed input could mend it; and it has to fail in the same place with real tensors (`real`).
Limits (`T <= 512`, `H % 32 == 0`) are warnings where the inputs were said, for they contradict what
was said, and assumptions of the call where they were guessed: most files have them on purpose.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...wire.shapes import ShapeDiagnostic
from .errors import Fault, fault_of, first_line, place_of
from .inputs import Sizes, tensors
from .modes import TooLong
from .probing import Failed, Probed
from .real import real_error, too_large
from .related import related_to
from .rewriting import Site, Source
from .running import Run, Target, run
from .sizes import fits
from .snapshots import form_of

Severity = Literal["error", "warning", "information", "hint"]

_SAID = {"spec", "jaxtyping"}
_LARGE = (1025, 4097)
#: For all limits of a call.
_SECONDS = 4.0
#: About a second on one core.
MOST_REAL_FLOPS = 20_000_000_000


def said(target: Target) -> bool:
    """Whether all inputs were said by the user."""
    return bool(target.inputs) and all(each.origin in _SAID for each in target.inputs)


# -- calls that fail at all sizes


def failures(failed: Sequence[Failed], source: Source) -> Iterator[ShapeDiagnostic]:
    """The fault of a call that runs with none of its inputs, if it is one for sure."""
    # What nothing speaks for says nothing if it fails, nor a call: who runs it sees it, and it may
    # be meant to, or not be what it seems.
    trusted = {*_SAID, "first use"}
    failed = [
        each
        for each in failed
        if all(one.origin in trusted and not one.blind for one in each.target.inputs)
    ]
    if not failed:
        return
    target = failed[0].target
    crashed = [run for each in failed for run in each.crashed]
    faults = [fault_of(each.error, source) if each.error else None for each in crashed]
    first = faults[0] if faults else None
    if first is None:
        return
    if not said(target):
        if any(
            each is None or (each.span, each.clash) != (first.span, first.clash) for each in faults
        ):
            return
        if set(first.clash) & constants(target):
            return  # what clashes may be the guess
    sizes = crashed[0].sizes
    if confirmed(target, sizes, first, source):
        yield diagnostic(first, "error", sizes, source)


def constants(target: Target) -> set[str]:
    """The sizes of guessed inputs that are numbers."""
    guessed = [each for each in target.inputs if each.origin not in _SAID]
    return {size for each in guessed for spec in tensors(each.value) for size in spec.shape}


def confirmed(target: Target, sizes: Sizes, fault: Fault, source: Source) -> bool:
    """Whether real tensors fail there too."""
    if too_large(target):
        return True
    error = real_error(target, sizes)
    if error is None or isinstance(error, TooLong):
        return False
    return place_of(error, source) == fault.span


def diagnostic(
    fault: Fault, severity: Severity, sizes: Sizes, source: Source, rule: str = ""
) -> ShapeDiagnostic:
    """What is shown of a fault."""
    at = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    operands = ", ".join(f"{name}: {shape}" for name, shape in fault.operands)
    message = f"{rule}: {fault.message}" if rule else fault.message
    if operands:
        message += f" [{operands}]"
    if at and not rule:
        message += f" (at {at})"
    return ShapeDiagnostic(
        source.in_characters(fault.span),
        severity,
        fault.code,
        message,
        dict(sizes),
        tuple(related_to(fault, source)),
    )


def dtype_faults(probed: Probed, source: Source) -> Iterator[ShapeDiagnostic]:
    """What meta kernels let pass: many of them don't compare dtypes."""
    target, sizes = probed.target, probed.runs[0].sizes
    if too_large(target) or (probed.flops or 0) > MOST_REAL_FLOPS:
        return
    error = real_error(target, sizes)
    fault = fault_of(error, source) if error is not None else None
    if fault is not None and (fault.code == "dtype-mismatch" or said(target)):
        yield diagnostic(fault, "error", sizes, source)


# -- limits of calls that run


@dataclass(frozen=True)
class Limit:
    """What a symbol has to be for the call to run: `T <= 512`, with the run that failed."""

    rule: str
    witness: Run


def limits_of(probed: Probed, declared: Sequence[str]) -> list[Limit]:
    """Tries each symbol at large sizes, and between its multiples if it has to be one of some.

    What fails is narrowed down to the largest size, or the least divisor, that runs.
    """
    found: list[Limit] = []
    base = probed.runs[0].sizes
    end = time.monotonic() + _SECONDS
    for name in base:
        if name in probed.plan.fixed:
            continue

        def at(size: int, name: str = name) -> Run | None:
            sizes = {**base, name: size}
            left = end - time.monotonic()
            if left <= 0 or not fits(declared, sizes):
                return None
            result = run(probed.target, sizes, record=False, seconds=min(left, _SECONDS / 4))
            return None if isinstance(result.error, TooLong) else result

        found += _limits_of_symbol(name, base[name], probed.plan.multiples.get(name, 1), at)
        if name in probed.plan.large:
            found += _least(name, base[name], at)
    return found


def _limits_of_symbol(
    name: str, good: int, step: int, at: Callable[[int], Run | None]
) -> Iterator[Limit]:
    if step > 1:
        limit = _divisor(name, good, step, at)
        if limit:
            yield limit
    for size in _LARGE:
        size = size // step * step
        large = at(size)
        if large is None or large.error is None:
            continue
        low, high, witness = good, size, large
        while high - low > step:
            middle = (low + high) // 2 // step * step
            middle = middle if middle > low else low + step
            result = at(middle)
            if result is not None and result.error is None:
                low = middle
            else:
                if result is None:
                    return
                high, witness = middle, result
        yield Limit(f"{name} <= {low}", witness)
        return


def _least(name: str, good: int, at: Callable[[int], Run | None]) -> Iterator[Limit]:
    """The smallest size that does."""
    low, witness = 0, None
    while good - low > 1:
        middle = (low + good) // 2
        result = at(middle)
        if result is None:
            return
        if result.error is None:
            good = middle
        else:
            low, witness = middle, result
    if witness is not None:
        yield Limit(f"{name} >= {good}", witness)


def _divisor(name: str, good: int, step: int, at: Callable[[int], Run | None]) -> Limit | None:
    """The least divisor that does: 64 was tried, 2 may be enough."""
    fails: Run | None = None
    works: list[int] = []
    for size in range(good, good + step + 1):
        result = at(size)
        if result is None:
            continue
        if result.error is None:
            works.append(size)
        else:
            fails = fails or result
    if fails is None or len(works) < 2:
        return None
    divisor = math.gcd(*[size - good for size in works])
    if divisor < 2 or good % divisor:
        return None
    return Limit(f"{name} % {divisor} == 0", fails)


def limit_faults(
    probed: Probed, limits: Sequence[Limit], source: Source
) -> Iterator[ShapeDiagnostic]:
    """Limits that contradict what the user said of the inputs."""
    if not said(probed.target):
        return
    for limit in limits:
        error = limit.witness.error
        fault = fault_of(error, source) if error is not None else None
        if fault is None or not confirmed(probed.target, limit.witness.sizes, fault, source):
            continue
        name = limit.rule.split()[0]
        at = f"{name} = {limit.witness.sizes[name]}"
        if "%" not in limit.rule:
            operator = limit.rule.split()[1]
            opposite = limit.rule.replace(operator, {"<=": ">", ">=": "<"}[operator])
            rule = f"fails when {opposite} ({at})"
        else:
            rule = f"needs {limit.rule} (fails at {at})"
        yield diagnostic(fault, "warning", limit.witness.sizes, source, rule)


def silent_broadcasts(probed: Probed, source: Source) -> Iterator[ShapeDiagnostic]:
    """(B, 1) against (B,): no error, and a loss over B*B pairs."""
    grown = [each.assumptions.grown if each.assumptions else {} for each in probed.runs]
    for span in grown[0]:
        if not all(span in each for each in grown):
            continue
        name = probed.fit.best(tuple(each[span] for each in grown))
        if name not in probed.target.symbols:
            continue
        yield ShapeDiagnostic(
            source.in_characters(span),
            "warning",
            "silent-broadcast",
            f"[{name}, 1] against [{name}] becomes [{name}, {name}]: each row meets all "
            f"others. Give both the same shape, with squeeze(-1) or unsqueeze(-1)",
            dict(probed.runs[0].sizes),
        )


# -- a batch of one


def squeezed_batch(
    probed: Probed, sites: Sequence[Site], declared: Sequence[str]
) -> Iterator[ShapeDiagnostic]:
    """`squeeze()` takes away a batch of one as well: the first value that has lost a dim there."""
    target = probed.target
    if "B" not in target.symbols:
        return
    sizes = {**probed.runs[0].sizes, "B": 1}
    if not fits(declared, sizes):
        return
    alone = run(target, sizes, memo=False)
    usual = run(target, probed.runs[0].sizes, memo=False)
    for one, other in zip(alone.observations, usual.observations):
        if one.site != other.site:
            return  # another way through the code: not a matter of shapes alone
        if form_of(one.snapshot) == form_of(other.snapshot):
            continue
        if one.snapshot[0] != "T" or other.snapshot[0] != "T":
            return
        site = sites[one.site]
        lost = len(other.snapshot[1]) - len(one.snapshot[1])
        if lost < 1 or "squeeze" not in site.name or other.snapshot[1][:1] != (usual.sizes["B"],):
            return
        fails = ""
        if alone.error:
            fails = f", and the call fails: {first_line(alone.error) or type(alone.error).__name__}"
        message = (
            f"a batch of one is squeezed away: with B = 1 this is {_shape(one.snapshot)}, "
            f"with B = {usual.sizes['B']} it is {_shape(other.snapshot)}{fails}. "
            f"Name the dim: squeeze(-1)"
        )
        yield ShapeDiagnostic(site.span, "warning", "squeezed-batch", message, {"B": 1})
        return


def _shape(snapshot: tuple[Any, ...]) -> str:
    return f"{snapshot[2]}[{', '.join(map(str, snapshot[1]))}]"
