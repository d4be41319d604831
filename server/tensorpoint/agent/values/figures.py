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
from typing import Any

from ..tensors import unseen, values_of
from . import devices
from .devices import Unavailable
from .plain import is_lazy, plain

#: Up to this many elements are all looked at at once, about 6 ms on a CPU.
_WHOLE = 1 << 20
_RUN = 16
_RUNS = 1 << 14
#: What a distribution is sorted from: 2^18 take 30 ms on a CPU.
_SORTED = 1 << 16
_PART = 1 << 20
#: How long the statistics that somebody asked for may take.
_SECONDS = 0.8
BINS = 32
#: The quantiles that are shown.
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(frozen=True)
class Figures:
    """Numbers of a tensor's elements. `mean`, `std`, `low` and `high` are of the finite ones.

    `std` divides by the number of elements less one, as `Tensor.std`. `first` is the position of
    the first element that isn't finite, in the order of the tensor's own indices; None if there is
    none or if only a sample was looked at.
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
    first: int | None
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
    part = _some(numbers, _WHOLE)
    first = part.numel() == numbers.numel()
    found = devices.run(numbers, lambda: _reduce(real(part)))
    if isinstance(found, Unavailable):
        return found
    return replace(_figures(found, numbers.numel(), part.numel(), in_order=first), of=of)


@unseen
def all_figures_of(tensor: Any) -> Figures | Unavailable:
    """The figures of all elements, as far as that takes less than a second, and their distribution.

    The distribution is that of a sample where there are many.
    """
    numbers, of = numbers_of(tensor)
    if isinstance(numbers, Unavailable):
        return numbers
    elements = numbers.numel()
    sample = _some(numbers, _SORTED)
    if numbers.device.type == "cpu":
        found = _in_parts(numbers)
        if found is None:
            found = figures_of(tensor)
            if isinstance(found, Unavailable):
                return found
        listed = _distribution(real(sample)).tolist()
    else:
        both = devices.run(numbers, lambda: _on_device(numbers, sample))
        if isinstance(both, Unavailable):
            return both
        found = _figures(both[:_WIDTH], elements, elements, in_order=True)
        listed = both[_WIDTH:]
    quantiles = tuple(listed[: len(QUANTILES)]) if found.finite else ()
    counts = tuple(int(count) for count in listed[len(QUANTILES) :]) if found.finite else ()
    return replace(found, of=of, quantiles=quantiles, histogram=counts)


def numbers_of(tensor: Any) -> tuple[Any, str]:
    """A plain tensor with the numbers (or why there is none), and what these are of."""
    torch = sys.modules["torch"]
    tensor = plain(tensor)
    if is_lazy(tensor):
        return Unavailable("it has no shape before its module's first call"), ""
    if torch._C._functorch.maybe_current_level() is not None or torch._C._get_tracing_state():
        return Unavailable("the program is in a function transform or a trace"), ""
    device = tensor.device.type
    if device == "meta" or type(tensor).__name__ == "FakeTensor":
        return Unavailable("it has no values, only a shape"), ""
    reason = devices.why_not(tensor)
    if reason is not None:
        return Unavailable(reason), ""
    try:
        numbers, of = values_of(tensor), ""
        if numbers is None:
            numbers, of = _others(tensor)
        elif tensor.is_complex():
            numbers, of = tensor.detach().resolve_conj(), "the magnitudes"
    except (RuntimeError, NotImplementedError) as error:
        return Unavailable(str(error).partition("\n")[0]), ""
    if numbers is None:
        return Unavailable(f"{type(tensor).__name__} has no values that can be read"), ""
    if numbers.layout is not torch.strided:
        return Unavailable(f"its layout is {numbers.layout}"), ""
    if not of and tensor.layout is not torch.strided:
        of = "the stored values"
    if not of and type(tensor).__name__ == "DTensor":
        of = "this rank's shard"
    if numbers.numel() == 0:
        return Unavailable("it is empty"), of
    return numbers, of


def _others(tensor: Any) -> tuple[Any, str]:
    """What `values_of` leaves out since it can't be non-finite: integers, booleans, quantised."""
    torch = sys.modules["torch"]
    found = getattr(tensor, "_local_tensor", tensor)
    if type(found).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return None, ""
    found = found.detach()
    if found.is_quantized:
        return (found.dequantize() if found.numel() <= _WHOLE else None), ""
    if found.layout is torch.sparse_coo:
        found = found._values()
    elif found.is_nested or found.layout is not torch.strided:
        found = found.values()
    if found.is_floating_point():  # float4 has no arithmetic
        return None, ""
    return found, ""


def _some(numbers: Any, most: int) -> Any:
    """All elements in memory's or in their own order, or some of them; shares memory if it can."""
    elements = numbers.numel()
    if elements <= most and (numbers.is_contiguous() or elements <= _WHOLE):
        return numbers.reshape(-1)
    flat = _flat(numbers)
    if flat is None:  # a view with holes
        step = max(1, numbers.shape[0] * _RUN * _RUNS // elements) if numbers.dim() else 1
        flat = numbers[:: max(1, numbers.shape[0] // step)].reshape(-1)
    if flat.numel() <= most:
        return flat
    runs = min(_RUNS, most // _RUN)
    stride = max(_RUN, (flat.numel() - _RUN) // runs | 1)
    runs = (flat.numel() - _RUN) // stride + 1
    return flat.as_strided((runs, _RUN), (stride, 1), flat.storage_offset()).reshape(-1)


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
    return part.double() if part.dtype in (torch.int32, torch.int64) else part.float()


#: finite, mean, sum of squared differences, low, high, zeros, nan, +inf, -inf, first bad one.
_WIDTH = 10


def _reduce(part: Any) -> Any:
    """The numbers of a part as one tensor; no value decides what runs."""
    torch = sys.modules["torch"]
    if part.device.type == "cpu":
        deviation, mean = torch.var_mean(part, correction=0)
        low, high = torch.aminmax(part)
        if math.isfinite(mean.item()) and math.isfinite((high - low).item()):
            count, zeros = part.numel(), part.numel() - int(torch.count_nonzero(part))
            numbers = [count, mean.item(), deviation.item() * count, low.item(), high.item()]
            return torch.tensor([*numbers, zeros, 0, 0, 0, -1], dtype=torch.float64, device="cpu")
    good = torch.isfinite(part)
    count = good.sum()
    mean = torch.where(good, part, 0).sum(dtype=torch.float64) / count.clamp(min=1)
    spread = torch.where(good, part - mean.to(part.dtype), 0).square().sum(dtype=torch.float64)
    low = torch.where(good, part, math.inf).amin()
    high = torch.where(good, part, -math.inf).amax()
    first = torch.where(count == part.numel(), -1, (~good).to(torch.uint8).argmax())
    return torch.stack(
        [
            item.to(torch.float64)
            for item in (
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


def _distribution(sample: Any) -> Any:
    """Quantiles and a histogram between the smallest and the largest finite element."""
    torch = sys.modules["torch"]
    good = torch.isfinite(sample)
    count = good.sum()
    ordered = torch.where(good, sample, math.inf).sort().values
    last = (count - 1).clamp(min=0)
    # Neither a list made a tensor nor a tensor of no dimension as an index: both wait for a device.
    places = torch.stack([(last * share).round().long() for share in (*QUANTILES, 0.0, 1.0)])
    taken = ordered.index_select(0, places).double()
    quantiles, low, high = taken[:-2], taken[-2], taken[-1]
    steps = torch.arange(1, BINS, dtype=torch.float64, device=sample.device) / BINS
    edges = (low + (high - low) * steps).to(sample.dtype)
    inner = torch.searchsorted(ordered, edges)
    zero = torch.zeros(1, dtype=inner.dtype, device=sample.device)
    counts = torch.diff(torch.cat([zero, torch.minimum(inner, count), count.reshape(1)]))
    return torch.cat([quantiles, counts.double()])


def _in_parts(numbers: Any) -> Figures | None:
    """All elements, part by part; None if that takes too long."""
    end = time.monotonic() + _SECONDS
    flat = _flat(numbers) if not numbers.is_contiguous() else numbers.reshape(-1)
    in_order = numbers.is_contiguous()
    if flat is None:
        if numbers.numel() > _WHOLE:
            return None
        flat, in_order = numbers.reshape(-1), True
    total: list[float] | None = None
    done = 0
    for part in flat.split(_PART):
        found = _reduce(real(part)).tolist()
        total = found if total is None else _merge(total, found, done)
        done += part.numel()
        if time.monotonic() > end and done < flat.numel():
            return None
    assert total is not None
    return _figures(total, numbers.numel(), done, in_order=in_order)


def _on_device(numbers: Any, sample: Any) -> Any:
    """Both, for one copy to the host. The parts are merged on the device."""
    torch = sys.modules["torch"]
    flat = _flat(numbers)
    whole = numbers.reshape(-1) if flat is None or numbers.is_contiguous() else flat
    return torch.cat([_reduce(real(whole)), _distribution(real(sample))])


def _merge(one: list[float], other: list[float], offset: int) -> list[float]:
    """Chan's formula for means and sums of squared differences of two parts."""
    count = one[0] + other[0]
    mean, spread = one[1], one[2] + other[2]
    if count:
        apart = other[1] - one[1]
        mean += apart * other[0] / count
        spread += apart * apart * one[0] * other[0] / count
    first = one[9] if one[9] >= 0 else other[9] + offset if other[9] >= 0 else -1
    sums = [a + b for a, b in zip(one[5:9], other[5:9], strict=True)]
    return [count, mean, spread, min(one[3], other[3]), max(one[4], other[4]), *sums, first]


def _figures(found: list[float], elements: int, looked_at: int, *, in_order: bool) -> Figures:
    if hasattr(found, "tolist"):
        found = found.tolist()  # type: ignore[attr-defined]
    count = int(found[0])
    return Figures(
        elements=elements,
        looked_at=looked_at,
        finite=count,
        mean=found[1] if count else math.nan,
        std=math.sqrt(found[2] / (count - 1)) if count > 1 else math.nan,
        low=found[3] if count else math.nan,
        high=found[4] if count else math.nan,
        zeros=int(found[5]),
        nan=int(found[6]),
        posinf=int(found[7]),
        neginf=int(found[8]),
        first=int(found[9]) if found[9] >= 0 and in_order and looked_at == elements else None,
    )
