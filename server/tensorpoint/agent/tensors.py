"""Is a tensor finite, and if not, where: the cheap check and the exact one.

The cheap check is `x.sum()`: it runs at memory bandwidth, about 10x cheaper than
`isnan().any()` and 20x cheaper than `isfinite().all()`, and has no false negatives; a sum can
overflow although every element is finite (fp16 beyond 65504), so suspicion is confirmed
exactly. On CPU no `dtype=` is passed (it materialises a cast, 5-20x slower); on CUDA halves are
summed in float32 (the cast is fused and the false positive goes away).
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from ..wire import TensorSummary

if TYPE_CHECKING:
    import torch

#: A tensor that was found finite, and its version then.
Seen = tuple["weakref.ref[torch.Tensor]", int]
QuickLook = Callable[..., Seen | None]

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: Of an inference tensor, which keeps none and so is never known to be unchanged.
_NO_VERSION = -1
_MAX_TENSORS = 256
#: Values of any kind that are looked at for tensors: there are outputs with a million numbers.
_MAX_VALUES = 4096
_MAX_DEPTH = 4
#: Elements looked at in one go by the exact check, so that its temporaries stay small.
_CHUNK = 1 << 24
#: Subclasses that wrap a plain tensor, and the attribute with what this process has of it: for a
#: DTensor the local shard, which needs no collective.
_WRAPPED = {"DTensor": "_local_tensor", "NestedTensor": "_values"}


def unseen(look: Callable[_P, _T]) -> Callable[_P, _T]:
    """Hide what `look` does with tensors from the program's modes and subclasses.

    A FlopCounterMode would count our sums, a mode that records a graph would keep them.
    """

    @wraps(look)
    def looking(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        inside = sys.modules["torch"]._C
        with inside.DisableTorchFunction(), inside._DisableTorchDispatch():
            return look(*args, **kwargs)

    return looking


@unseen
def version_of(tensor: torch.Tensor) -> int | None:
    """How often `tensor` was written to; inference tensors don't know."""
    return None if tensor.is_inference() else tensor._version


def remember(value: object) -> Seen | None:
    """What to remember of a value found finite; None unless it is a tensor that keeps a version."""
    if not isinstance(value, sys.modules["torch"].Tensor):
        return None
    tensor = cast("torch.Tensor", value)
    version = version_of(tensor)
    return None if version is None else (weakref.ref(tensor), version)


def same(tensor: torch.Tensor, seen: Seen | None) -> bool:
    """Whether `tensor` is what was `seen`, and unchanged since."""
    return seen is not None and seen[0]() is tensor and seen[1] == version_of(tensor)


def tensors_in(value: object, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in tuples, lists, dicts (ModelOutput too) and dataclasses, with their names."""
    tensor = sys.modules["torch"].Tensor
    found = 0
    waiting = [(name, value, 0)]
    for _ in range(_MAX_VALUES):
        if not waiting or found == _MAX_TENSORS:
            return
        name, value, depth = waiting.pop()
        if isinstance(value, tensor):
            found += 1
            yield name, cast("torch.Tensor", value)
        elif depth < _MAX_DEPTH:
            inner = [(*item, depth + 1) for item in islice(_items(name, value), _MAX_VALUES)]
            waiting.extend(reversed(inner))


def _items(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{name}.{key}" if type(value) is not dict else f"{name}[{key!r}]", item
    elif isinstance(value, (tuple, list)):
        fields: Any = getattr(value, "_fields", None)
        for position, item in enumerate(value):
            yield f"{name}.{fields[position]}" if fields else f"{name}[{position}]", item
    else:  # asked of the type: an fx Proxy has every attribute
        for field in getattr(type(value), "__dataclass_fields__", ()):
            yield f"{name}.{field}", getattr(value, field, None)


def quick_look() -> QuickLook:
    """The look at one output in the usual case; made when torch is there.

    It takes a tensor, what was seen last, and whether the tensor is known to be finite. It returns
    what to remember of a plain CPU tensor that was seen at this version already or that one sum
    shows to be finite; None asks for a closer look. It runs once per module and is one Python
    frame of C calls and attribute reads, bound here: each look-up through `torch` costs 0.15 us.
    Where the program has modes active, the closer look hides from them.
    """
    torch = sys.modules["torch"]
    plain, strided = torch.Tensor, torch.strided
    dtypes = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float64))
    function_modes = torch._C._len_torch_function_stack
    dispatch_modes = torch._C._len_torch_dispatch_stack
    transform, trace = torch._C._functorch.maybe_current_level, torch._C._get_tracing_state
    isfinite, reference = math.isfinite, weakref.ref

    def look(tensor: Any, seen: Seen | None, known: bool = False) -> Seen | None:
        if type(tensor) is not plain or function_modes() or dispatch_modes():
            return None
        version = _NO_VERSION if tensor.is_inference() else tensor._version
        if seen is not None and seen[1] == version != _NO_VERSION and seen[0]() is tensor:
            return seen
        if (
            tensor.is_cpu
            and tensor.layout is strided
            and not tensor.is_nested
            and tensor.dtype in dtypes
            and transform() is None
            and not trace()
            and (known or isfinite(tensor.detach().sum().item()))
        ):
            return reference(tensor), version
        return None

    return look


@unseen
def has_nonfinite(tensor: torch.Tensor) -> bool:
    """Whether any element is NaN or infinite; False for tensors that cannot be looked at."""
    values = values_of(tensor)
    if values is None or values.numel() == 0:
        return False
    torch = sys.modules["torch"]
    if values.is_cuda:
        if torch.cuda.is_current_stream_capturing():
            return False
        quick = values.sum(dtype=torch.float32 if values.element_size() < 4 else None)
    else:
        quick = values.sum()
    if math.isfinite(quick.item()):
        return False
    return any(not bool(torch.isfinite(part).all()) for part in _parts(values))


def values_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The numbers of `tensor` as a plain real floating tensor sharing its memory, or None.

    None for what has no numbers to look at or can never be non-finite: integers, booleans, meta,
    fake and quantised tensors, wrappers inside function transforms, subclasses that handle
    operations themselves. To be called by something that is `unseen`.
    """
    torch = sys.modules["torch"]
    if torch._C._functorch.maybe_current_level() is not None or torch._C._get_tracing_state():
        return None
    values: Any = getattr(tensor, _WRAPPED.get(type(tensor).__name__, ""), tensor)
    if type(values).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return None
    values = values.detach()
    if values.layout is torch.sparse_coo:
        values = values._values()
    elif values.is_nested or values.layout in _compressed(torch):
        values = values.values()
    if values.is_meta or values.is_quantized or values.layout is not torch.strided:
        return None
    if values.is_complex():
        return torch.view_as_real(values.resolve_conj())
    if not values.is_floating_point():
        return None
    if values.element_size() == 1:  # float8 has no arithmetic of its own, float4 no NaN and no Inf
        return values.float() if "float8" in str(values.dtype) else None
    return values


def _compressed(torch: Any) -> tuple[Any, ...]:
    return torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc


def _parts(values: Any) -> Iterator[Any]:
    """Pieces of at most `_CHUNK` elements, in row-major order."""
    if values.numel() <= _CHUNK:
        yield values
        return
    rows = _CHUNK * len(values) // values.numel()
    if rows:
        yield from values.split(rows)
    else:
        for row in values:
            yield from _parts(row)


@unseen
def summarise(tensor: torch.Tensor, name: str) -> TensorSummary:
    """Count what is not finite in `tensor`, which `has_nonfinite` said is worth it."""
    torch = sys.modules["torch"]
    values = values_of(tensor)
    nan = posinf = neginf = offset = 0
    first: int | None = None
    low, high = math.inf, -math.inf
    for part in () if values is None else _parts(values):
        bad = ~torch.isfinite(part)
        nan += int(torch.isnan(part).sum())
        posinf += int(torch.isposinf(part).sum())
        neginf += int(torch.isneginf(part).sum())
        if first is None and bool(bad.any()):
            first = offset + int(bad.reshape(-1).to(torch.uint8).argmax())
        if not bool(bad.all()):
            good = part[~bad]
            low, high = min(low, float(good.min())), max(high, float(good.max()))
        offset += part.numel()
    shape = tuple(int(size) for size in tensor.shape) if not tensor.is_nested else ()
    layout = () if values is None else tuple(values.shape)
    # The numbers of a complex tensor have one more dimension; those of a sparse one have no place.
    placed = first is not None and layout in (shape, (*shape, 2))
    return TensorSummary(
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=shape,
        device=str(tensor.device),
        elements=0 if values is None else values.numel(),
        nan=nan,
        posinf=posinf,
        neginf=neginf,
        first_index=_unravel(first or 0, layout)[: len(shape)] if placed else None,
        finite_min=low if low <= high else None,
        finite_max=high if low <= high else None,
    )


def _unravel(offset: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(shape):
        index.append(offset % size)
        offset //= size
    return tuple(reversed(index))
