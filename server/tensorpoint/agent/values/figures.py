"""The statistics of a tensor, within a budget of time and bytes.

One pass of reductions over parts of a million elements, merged by Chan's formula, which stays exact
where sums of squares cancel. A large tensor is looked at in runs of 16 neighbours at an odd stride:
each run is one cache line, so that 262,144 elements of a gigabyte are read in 1 ms in place of the
9 ms that as many single elements take; what is sampled says so.

All of it is one function of tensors without a branch on a number (`_reduce`, `_distribution`), so
on a device it is queued as a whole and its few numbers come to the host with one copy; see
`devices` for how that is waited for. Nothing copies the tensor to the host.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from ..tensors import (
    compressed_layouts,
    parts_of,
    unravel,
    unseen,
    values_of,
    within,
)
from . import devices
from .devices import Unavailable
from .plain import NO_VALUES, call, is_lazy, plain, read, shape_of, why_hollow

#: Up to this many elements are all looked at at once, about 6 ms on a CPU.
_WHOLE = 1 << 20
_RUN = 16
_RUNS = 1 << 14
#: Of a view with holes: each is some five times as dear, since no run of it is in one cache line.
_RUNS_IN_HOLES = 1 << 12
#: What a distribution is sorted from: 2^18 take 30 ms on a CPU.
_SORTED = 1 << 16
_PART = 1 << 20
#: Parts of what is on a device, where each costs some ten kernels, and how many elements at most.
_PART_AT_ONCE = 1 << 24
_MOST_AT_ONCE = 1 << 33
#: How long the statistics that somebody asked for may take.
_SECONDS = 0.8
BINS = 32
#: The quantiles that are shown.
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(frozen=True)
class Figures:
    """Numbers of a tensor's elements. `mean`, `std`, `low` and `high` are of the finite ones.

    `std` divides by the number of elements less one, as `Tensor.std`. `first` is the index of the
    first element that isn't finite; None if there is none, if only a sample was looked at, or if
    what was looked at has other indices than the tensor (stored values, a shard).
    """

    elements: int
    looked_at: int
    finite: int
    mean: float
    std: float
    low: float
    high: float
    zeros: int
    nan: int
    posinf: int
    neginf: int
    first: tuple[int, ...] | None
    #: What the numbers are of, where that is not the tensor itself.
    of: str = ""
    quantiles: tuple[float, ...] = ()
    histogram: tuple[int, ...] = ()

    @property
    def sampled(self) -> bool:
        """Whether only some of the elements were looked at."""
        return self.looked_at < self.elements

    @property
    def nonfinite(self) -> int:
        """How many of those that were looked at are NaN or infinite."""
        return self.nan + self.posinf + self.neginf


@unseen
def figures_of(tensor: Any) -> Figures | Unavailable:
    """The figures for a line of text, of a sample if it is large; a few milliseconds on a CPU."""
    numbers, of = numbers_of(tensor)
    if isinstance(numbers, Unavailable):
        return numbers
    found = devices.run(numbers, lambda: _reduce(real(_some(numbers, _WHOLE))))
    if isinstance(found, Unavailable):
        return found
    return _figures(found, numbers, tensor, of)


@unseen
def all_figures_of(tensor: Any) -> Figures | Unavailable:
    """The figures of all elements, as far as that takes less than a second, and their distribution.

    The distribution is that of a sample where there are many, between the extremes of all.
    """
    numbers, of = numbers_of(tensor)
    if isinstance(numbers, Unavailable):
        return numbers
    look = _in_parts if numbers.device.type == "cpu" else _at_once
    listed = devices.run(numbers, lambda: look(numbers))
    if isinstance(listed, Unavailable):
        return listed
    rows = range(0, len(listed) - len(QUANTILES) - BINS, _WIDTH)
    total = reduce(_merge, [listed[at : at + _WIDTH] for at in rows])
    found = _figures(total, numbers, tensor, of)
    if not found.finite:
        return found
    quantiles, counts = listed[-len(QUANTILES) - BINS : -BINS], listed[-BINS:]
    return replace(found, quantiles=tuple(quantiles), histogram=tuple(map(int, counts)))


def numbers_of(tensor: Any, *, may_be_empty: bool = False) -> tuple[Any, str]:
    """A plain tensor with the numbers (or why there is none), and what these are of."""
    torch = sys.modules["torch"]
    if is_lazy(tensor):
        return Unavailable("it has no shape before its module's first call"), ""
    if torch._C._functorch.maybe_current_level() is not None or torch._C._get_tracing_state():
        return Unavailable("the program is in a function transform or a trace"), ""
    hollow = why_hollow(within(tensor))
    if hollow is not None:
        return Unavailable(hollow), ""
    if read(tensor, "device").type == "meta":
        return Unavailable(NO_VALUES), ""
    tensor = plain(tensor)
    reason = devices.why_not(tensor)
    if reason is not None:
        return Unavailable(reason), ""
    try:
        numbers, of = _as_is(tensor), ""
        if numbers is None:
            numbers = values_of(tensor)
        if numbers is None:
            numbers, of = _others(tensor)
        elif tensor.is_complex():
            numbers, of = tensor.detach().resolve_conj(), "the magnitudes"
    except RuntimeError as error:
        return Unavailable.because(error), ""
    if numbers is None:
        what = f"{tensor.dtype}, {tensor.layout}".replace("torch.", "")
        return Unavailable(f"it has no values that can be read ({what})"), ""
    if numbers.layout is not torch.strided:
        return Unavailable(f"its layout is {numbers.layout}"), ""
    if not of and tensor.layout is not torch.strided:
        of = "the stored values"
    if not of and type(tensor).__name__ == "DTensor":
        of = "this rank's shard"
    if numbers.numel() == 0 and not may_be_empty:
        return Unavailable("it is empty"), of
    return numbers, of


def _as_is(tensor: Any) -> Any:
    """A float8 tensor: `values_of` makes floats of all of it, `real` of what is looked at."""
    is_small = read(tensor, "dtype").is_floating_point and call(tensor, "element_size") == 1
    is_plain = type(within(tensor)) is type(tensor) and not read(tensor, "is_nested")
    if not (is_small and is_plain and read(tensor, "layout") is sys.modules["torch"].strided):
        return None
    return tensor if "float8" in str(tensor.dtype) else None


def _others(tensor: Any) -> tuple[Any, str]:
    """What `values_of` leaves out since it can't be non-finite: integers, booleans, quantised."""
    torch = sys.modules["torch"]
    found = within(tensor)
    found = found.detach()
    if found.is_quantized:
        return (found.dequantize() if found.numel() <= _WHOLE else None), ""
    if found.layout is torch.sparse_coo:
        found = found._values()
    elif found.is_nested or found.layout in compressed_layouts():
        found = found.values()
    elif found.layout is not torch.strided:
        return None, ""
    if found.is_floating_point():  # float4 has no arithmetic
        return None, ""
    return found, ""


def _some(numbers: Any, most: int) -> Any:
    """All elements in their own order, or some of them; shares memory where it can."""
    elements = numbers.numel()
    if elements <= most:
        return numbers.reshape(-1)
    flat = _flat(numbers)
    runs = min(_RUNS if flat is not None else _RUNS_IN_HOLES, most // _RUN)
    stride = max(_RUN, (elements - _RUN) // runs | 1)
    if flat is not None:
        return flat.unfold(0, _RUN, stride).reshape(-1)
    torch = sys.modules["torch"]
    starts = torch.arange(0, elements - _RUN + 1, stride, device=numbers.device)
    places = starts[:, None] + torch.arange(_RUN, device=numbers.device)
    if numbers.dtype.is_floating_point and numbers.element_size() == 1:  # float8 can't be indexed
        return numbers.view(torch.uint8).take(places.reshape(-1)).view(numbers.dtype)
    return numbers.take(places.reshape(-1))


def _flat(numbers: Any) -> Any:
    """As one run of memory; None where there are holes, or elements in several places."""
    expected = 1
    for step, size in sorted(zip(numbers.stride(), numbers.shape, strict=True)):
        if size != 1:
            if step != expected:
                return None
            expected *= size
    return numbers.as_strided((numbers.numel(),), (1,), numbers.storage_offset())


def real(part: Any) -> Any:
    """As float32 or float64: halves have too few digits for a mean, and float32 for integers."""
    torch = sys.modules["torch"]
    if part.is_complex():
        part = part.abs()
    if part.dtype in (torch.float32, torch.float64):
        return part
    is_wide = not part.dtype.is_floating_point and part.element_size() >= 4
    return part.double() if is_wide else part.float()


#: looked at, finite, mean, sum of squared differences, low, high, zeros, nan, +inf, -inf, and the
#: place of the first bad one.
_WIDTH = 11
_LOW, _HIGH = 4, 5


def _reduce(part: Any) -> Any:
    """The numbers of a part as one tensor; no value decides what runs."""
    torch = sys.modules["torch"]
    if part.device.type == "cpu":
        deviation, mean = torch.var_mean(part, correction=0)
        low, high = torch.aminmax(part)
        if math.isfinite(mean.item()) and math.isfinite((high - low).item()):
            count, zeros = part.numel(), part.numel() - int(torch.count_nonzero(part))
            numbers = [count, count, mean.item(), deviation.item() * count, low.item(), high.item()]
            return torch.tensor([*numbers, zeros, 0, 0, 0, -1], dtype=torch.float64, device="cpu")
    good = torch.isfinite(part)
    count = good.sum()
    mean = torch.where(good, part, 0).sum(dtype=torch.float64) / count.clamp(min=1)
    spread = torch.where(good, part - mean.to(part.dtype), 0).square().sum(dtype=torch.float64)
    low = torch.where(good, part, math.inf).amin()
    high = torch.where(good, part, -math.inf).amax()
    first = torch.where(count == part.numel(), -1, (~good).to(torch.uint8).argmax())
    looked_at = torch.full_like(count, part.numel())
    return torch.stack(
        [
            item.to(torch.float64)
            for item in (
                looked_at,
                count,
                mean,
                spread,
                low,
                high,
                (part == 0).sum(),
                torch.isnan(part).sum(),
                torch.isposinf(part).sum(),
                torch.isneginf(part).sum(),
                first,
            )
        ]
    )


def _distribution(sample: Any, low: Any, high: Any) -> Any:
    """Quantiles of the finite elements, and a histogram of them between two numbers."""
    torch = sys.modules["torch"]
    good = torch.isfinite(sample)
    count = good.sum()
    ordered = torch.where(good, sample, math.inf).sort().values
    last = (count - 1).clamp(min=0)
    # Neither a list made a tensor nor a tensor of no dimension as an index: both wait for a device.
    places = torch.stack([(last * share).round().long() for share in QUANTILES])
    quantiles = ordered.index_select(0, places).double()
    steps = torch.arange(1, BINS, dtype=torch.float64, device=sample.device) / BINS
    edges = (low + (high - low) * steps).to(sample.dtype)
    inner = torch.searchsorted(ordered, edges)
    zero = torch.zeros(1, dtype=inner.dtype, device=sample.device)
    counts = torch.diff(torch.cat([zero, torch.minimum(inner, count), count.reshape(1)]))
    return torch.cat([quantiles, counts.double()])


def _with_distribution(found: Any, numbers: Any) -> Any:
    """`found` has a row for each part of the numbers."""
    distribution = _distribution(
        real(_some(numbers, _SORTED)), found[:, _LOW].amin(), found[:, _HIGH].amax()
    )
    return sys.modules["torch"].cat([found.reshape(-1), distribution])


def _at_once(numbers: Any) -> Any:
    """All elements, and the distribution of a sample, without a branch on any number.

    In parts as well, since what a part takes in passing is several times its size.
    """
    looked_at = numbers if numbers.numel() <= _MOST_AT_ONCE else _some(numbers, _WHOLE)
    parts = parts_of(looked_at, _PART_AT_ONCE)
    found = sys.modules["torch"].stack([_reduce(real(part)) for part in parts])
    return _with_distribution(found, numbers)


def _in_parts(numbers: Any) -> Any:
    """The same part by part; of a sample where that takes too long."""
    torch = sys.modules["torch"]
    end = time.monotonic() + _SECONDS
    total: list[float] | None = None
    for part in parts_of(numbers, _PART):
        if total is not None and time.monotonic() > end:
            return _with_distribution(_reduce(real(_some(numbers, _WHOLE)))[None], numbers)
        found = _reduce(real(part)).tolist()
        total = found if total is None else _merge(total, found)
    return _with_distribution(torch.tensor([total], dtype=torch.float64, device="cpu"), numbers)


def _merge(one: list[float], other: list[float]) -> list[float]:
    """Chan's formula for means and sums of squared differences of two parts."""
    count = one[1] + other[1]
    mean, spread = one[2], one[3] + other[3]
    if count:
        apart = other[2] - one[2]
        mean += apart * other[1] / count
        spread += apart * apart * one[1] * other[1] / count
    first = one[10] if one[10] >= 0 else other[10] + one[0] if other[10] >= 0 else -1
    sums = [a + b for a, b in zip(one[6:10], other[6:10], strict=True)]
    low, high = min(one[4], other[4]), max(one[5], other[5])
    return [one[0] + other[0], count, mean, spread, low, high, *sums, first]


def _figures(found: list[float], numbers: Any, tensor: Any, of: str) -> Figures:
    looked_at, count, mean, spread, low, high, *counts, first = found
    elements, shape = numbers.numel(), tuple(numbers.shape)
    placed = first >= 0 and looked_at == elements and shape == shape_of(tensor)
    zeros, nan, posinf, neginf = map(int, counts)
    return Figures(
        elements=elements,
        looked_at=int(looked_at),
        finite=int(count),
        mean=mean if count else math.nan,
        std=math.sqrt(spread / (count - 1)) if count > 1 else math.nan,
        low=low if count else math.nan,
        high=high if count else math.nan,
        zeros=zeros,
        nan=nan,
        posinf=posinf,
        neginf=neginf,
        first=unravel(int(first), shape) if placed else None,
        of=of,
    )
