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
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache, wraps
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


class _Hidden(threading.local):
    is_so = False


_hidden = _Hidden()


def unseen(look: Callable[_P, _T]) -> Callable[_P, _T]:
    """Hide what `look` does with tensors from the program's modes and subclasses.

    A FlopCounterMode would count our sums, a mode that records a graph would keep them.
    """

    @wraps(look)
    def looking(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if _hidden.is_so:  # by a caller: once more is 2 us, of which a row of variables has 15
            return look(*args, **kwargs)
        inside = sys.modules["torch"]._C
        with inside.DisableTorchFunction(), inside._DisableTorchDispatch():
            _hidden.is_so = True
            try:
                return look(*args, **kwargs)
            finally:
                _hidden.is_so = False

    return looking


def version_of(tensor: torch.Tensor) -> int | None:
    """How often `tensor` was written to; inference tensors don't know."""
    torch = sys.modules["torch"]
    if type(tensor) is not torch.Tensor or torch._C._len_torch_function_stack():
        return _unseen_version(tensor)
    return None if tensor.is_inference() else tensor._version


@unseen
def _unseen_version(tensor: torch.Tensor) -> int | None:
    of_torch: Any = sys.modules["torch"]._C.TensorBase  # whatever the program's class makes of it
    return None if of_torch.is_inference(tensor) else of_torch._version.__get__(tensor)


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

    It takes a tensor and what was seen last. It returns what to remember of a plain CPU tensor that
    was seen at this version already or that one sum shows to be finite; None asks for a closer
    look. It runs once per module and is one Python frame of C calls and attribute reads, bound here
    and as few as can be: after a convolution each takes some 4 us, and the sum of a small tensor
    100, their code being cold by then.
    Where the program has modes active, the closer look hides from them.
    """
    torch = sys.modules["torch"]
    plain = torch.Tensor
    function_modes = torch._C._len_torch_function_stack
    dispatch_modes = torch._C._len_torch_dispatch_stack
    trace, isfinite, reference = torch._C._get_tracing_state, math.isfinite, weakref.ref

    def look(tensor: Any, seen: Seen | None) -> Seen | None:
        if type(tensor) is not plain or function_modes() or dispatch_modes():
            return None
        version = _NO_VERSION if tensor.is_inference() else tensor._version
        if seen is not None and seen[1] == version != _NO_VERSION and seen[0]() is tensor:
            return seen
        if tensor.is_cpu and not trace():
            try:
                if isfinite(tensor.detach().sum().item()):
                    return reference(tensor), version
            except Exception:  # without such a sum: complex, quantised, float8, in a vmap, ...
                return None
        return None

    return look


def quick_norm() -> Callable[[Any], float | None]:
    """`norm_of` in one Python frame for the usual case, as `quick_look` is."""
    torch = sys.modules["torch"]
    vector_norm, plain, strided = torch.linalg.vector_norm, torch.Tensor, torch.strided
    function_modes = torch._C._len_torch_function_stack
    dispatch_modes = torch._C._len_torch_dispatch_stack
    transform, trace = torch._C._functorch.maybe_current_level, torch._C._get_tracing_state
    dtypes = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float64))

    def norm(tensor: Any) -> float | None:
        if (  # `_is_plain`
            type(tensor) is plain
            and not function_modes()
            and not dispatch_modes()
            and tensor.is_cpu
            and tensor.layout is strided
            and not tensor.is_nested
            and tensor.dtype in dtypes
            and transform() is None
            and not trace()
        ):
            # A gradient seldom needs `detach`, which is 8 us where its code is cold.
            return vector_norm(tensor.detach() if tensor.requires_grad else tensor).item()
        return norm_of(tensor)

    return norm


def quick_zero_fraction(size: int = 4096) -> Callable[[Any], float | None]:
    """`zero_fraction_of` a sample of about `size` elements, in few frames for the usual case."""
    is_plain, count_nonzero = _is_plain(), sys.modules["torch"].count_nonzero

    def zero_fraction(tensor: Any) -> float | None:
        elements = tensor.numel()
        if elements and is_plain(tensor) and tensor.is_contiguous():
            sample = tensor.detach().view(-1)
            if elements > size:
                sample = sample[:: elements // size | 1]
            return 1 - count_nonzero(sample).item() / sample.numel()
        sample = sample_of(tensor)
        return None if sample is None else zero_fraction_of(sample)

    return zero_fraction


def _is_plain() -> Callable[[Any], bool]:
    """Whether a tensor is an ordinary one on the CPU, with nobody of the program's looking on."""
    torch = sys.modules["torch"]
    plain, strided = torch.Tensor, torch.strided
    dtypes = frozenset((torch.float32, torch.bfloat16, torch.float16, torch.float64))
    function_modes = torch._C._len_torch_function_stack
    dispatch_modes = torch._C._len_torch_dispatch_stack
    transform, trace = torch._C._functorch.maybe_current_level, torch._C._get_tracing_state

    def is_plain(tensor: Any) -> bool:
        return (
            type(tensor) is plain
            and not function_modes()
            and not dispatch_modes()
            and tensor.is_cpu
            and tensor.layout is strided
            and not tensor.is_nested
            and tensor.dtype in dtypes
            and transform() is None
            and not trace()
        )

    return is_plain


def has_nonfinite(tensor: torch.Tensor) -> bool:
    """Whether any element is NaN or infinite; False for tensors that cannot be looked at."""
    return not _quick_finite()(tensor) and _has_nonfinite(tensor)


@cache
def _quick_finite() -> Callable[[Any], bool]:
    """Whether one sum shows a tensor to be finite: the usual case, with nobody to hide it from."""
    torch = sys.modules["torch"]
    plain, isfinite = torch.Tensor, math.isfinite
    function_modes = torch._C._len_torch_function_stack
    dispatch_modes = torch._C._len_torch_dispatch_stack
    trace = torch._C._get_tracing_state

    def is_finite(tensor: Any) -> bool:
        if type(tensor) is not plain or function_modes() or dispatch_modes() or trace():
            return False
        try:
            is_wanted = tensor.is_cpu and tensor.is_floating_point()
            return is_wanted and isfinite(tensor.detach().sum().item())
        except Exception:  # float8, in a vmap, ...
            return False

    return is_finite


@unseen
def _has_nonfinite(tensor: torch.Tensor) -> bool:
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
    return any(not bool(torch.isfinite(part).all()) for part in parts_of(values, _CHUNK))


@unseen
def norm_of(tensor: torch.Tensor) -> float | None:
    """The 2-norm of all elements; None for tensors that cannot be looked at.

    NaN or infinite if an element is, or if the sum of squares overflows (float32: from 1.8e19 on).
    It is as cheap as a sum for float32 and bfloat16.
    """
    values = values_of(tensor)
    if values is None:
        return None
    return sys.modules["torch"].linalg.vector_norm(values).item()


@unseen
def norms_of(tensors: Sequence[torch.Tensor]) -> list[float | None]:
    """`norm_of` of each, in few kernels and with one wait for the device."""
    torch = sys.modules["torch"]
    inside = torch._C
    is_usual = inside._functorch.maybe_current_level() is None and not inside._get_tracing_state()
    kinds, strided = (torch.Tensor, torch.nn.Parameter), torch.strided
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    values = [
        (tensor.detach() if tensor.requires_grad else tensor)
        if is_usual  # `values_of` in this frame: there may be thousands
        and type(tensor) in kinds
        and tensor.dtype in dtypes
        and tensor.layout is strided
        and not (tensor.is_nested or tensor.is_meta)
        else values_of(tensor)
        for tensor in tensors
    ]
    present = [item for item in values if item is not None and item.numel() > 0]
    if not present:
        return [None if item is None else 0.0 for item in values]
    devices = {item.device for item in present}
    if len(devices) == 1:
        norms = torch._foreach_norm(present)
        if len({norm.dtype for norm in norms}) > 1:
            norms = [norm.float() for norm in norms]
        found = iter(torch.stack(norms).tolist())
    else:
        found = iter([torch.linalg.vector_norm(item).item() for item in present])
    return [None if item is None else next(found) if item.numel() else 0.0 for item in values]


@unseen
def absmax_of(tensor: torch.Tensor) -> float | None:
    """max |x|, NaN if an element is; None for tensors that cannot be looked at or are empty."""
    values = values_of(tensor)
    if values is None or values.numel() == 0:
        return None
    low, high = sys.modules["torch"].aminmax(values)
    low, high = low.item(), high.item()
    return low if low != low else max(-low, high)


@unseen
def zero_fraction_of(tensor: torch.Tensor) -> float | None:
    """The share of elements that are exactly 0; None for tensors that cannot be looked at."""
    values = values_of(tensor)
    if values is None or values.numel() == 0:
        return None
    nonzero = int(sys.modules["torch"].count_nonzero(values))
    return 1 - nonzero / values.numel()


@unseen
def sample_of(
    tensor: torch.Tensor, whole_up_to: int = 4096, size: int = 4096
) -> torch.Tensor | None:
    """The numbers of `tensor`, or about `size` of them at an odd stride; shares memory if it can.

    An odd stride doesn't keep hitting the same column of a matrix whose width is a power of two.
    """
    values = values_of(tensor)
    if values is None:
        return None
    flat = values.reshape(-1) if values.is_contiguous() or values.numel() <= whole_up_to else None
    if flat is None:  # a view, where `reshape` would copy all of it
        step = max(1, values.shape[0] * size // values.numel())
        flat = values[:: max(1, values.shape[0] // step)].reshape(-1)
    if flat.numel() <= whole_up_to:
        return flat
    return flat[:: flat.numel() // size | 1]


@unseen
def samples_of(
    tensors: Sequence[torch.Tensor], whole_up_to: int, size: int
) -> list[torch.Tensor | None]:
    """`sample_of` of each."""
    look: Any = sample_of.__wrapped__  # type: ignore[attr-defined]
    return [look(tensor, whole_up_to, size) for tensor in tensors]


@unseen
def copies_of(tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """A copy of each."""
    return [None if tensor is None else tensor.clone() for tensor in tensors]


@unseen
def samples_again(
    tensors: Sequence[torch.Tensor],
    samples: Sequence[torch.Tensor],
    whole_up_to: int,
    size: int,
) -> list[torch.Tensor | None]:
    """`samples_of` these once more: most were written to where they are, and are seen there."""
    torch = sys.modules["torch"]
    kinds, strided = (torch.Tensor, torch.nn.Parameter), torch.strided
    return [
        sample
        if type(tensor) in kinds
        and tensor.layout is strided
        and tensor.data_ptr() == sample.data_ptr()
        else samples_of([tensor], whole_up_to, size)[0]
        for tensor, sample in zip(tensors, samples, strict=True)
    ]


@unseen
def change_norms(
    before: Sequence[torch.Tensor], after: Sequence[torch.Tensor | None]
) -> tuple[list[float], list[float]]:
    """2-norms of (after - before) and of before, for each pair; `before` is overwritten."""
    torch = sys.modules["torch"]
    sizes = torch._foreach_norm(before)
    torch._foreach_sub_(before, after)
    norms = torch.stack([*sizes, *torch._foreach_norm(before)]).tolist()
    return norms[len(before) :], norms[: len(before)]


def is_of_torch(tensor: Any) -> bool:
    """Whether its class is torch's own: what that runs is no code of the program's."""
    return type(tensor).__module__.partition(".")[0] == "torch"


def within(tensor: Any) -> Any:
    """What this process has of a tensor that wraps one, as a DTensor's shard; else itself."""
    inner = _WRAPPED.get(type(tensor).__name__) if is_of_torch(tensor) else None
    return tensor if inner is None else getattr(tensor, inner)


def values_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The numbers of `tensor` as a plain real floating tensor sharing its memory, or None.

    None for what has no numbers to look at or can never be non-finite: integers, booleans, meta,
    fake and quantised tensors, those without memory, wrappers inside function transforms,
    subclasses that handle operations themselves. To be called by something that is `unseen`.
    """
    torch = sys.modules["torch"]
    if torch._C._functorch.maybe_current_level() is not None or torch._C._get_tracing_state():
        return None
    values = within(tensor)
    if type(values).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return None
    values = values.detach()
    if values.layout is torch.sparse_coo:
        values = values._values()
    elif values.is_nested or values.layout in compressed_layouts():
        values = values.values()
    if values.is_meta or values.is_quantized or values.layout is not torch.strided:
        return None
    if has_no_memory(values):
        return None
    if values.is_complex():
        return torch.view_as_real(values.resolve_conj())
    if not values.is_floating_point():
        return None
    if values.element_size() == 1:  # float8 has no arithmetic of its own, float4 no NaN and no Inf
        return values.float() if "float8" in str(values.dtype) else None
    return values


def has_no_memory(tensor: Any) -> bool:
    """Whether there is no memory for a strided tensor's elements: reading them is a fault then.

    FSDP gives it back by resizing the storage to 0 and keeps the tensor; torch's kernels look at
    the sizes alone. Tangents that are all zero have none from the start.
    """
    if not tensor.numel():
        return False
    if tensor._is_zerotensor():
        return True
    if tensor.is_quantized:  # some keep several elements in a byte
        return tensor.untyped_storage().nbytes() == 0
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * step for size, step in sizes)
    return bool(tensor.untyped_storage().nbytes() <= last * tensor.element_size())


def compressed_layouts() -> tuple[Any, ...]:
    """The layouts of sparse tensors that keep their numbers as `values()`."""
    torch = sys.modules["torch"]
    return torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc


def parts_of(values: Any, most: int) -> Iterator[Any]:
    """Pieces of at most `most` elements, in row-major order; views."""
    if values.numel() <= most:
        yield values
        return
    rows = most * len(values) // values.numel()
    # (`split` and iterating make all views at once: of an expanded tensor 2^30 and more.)
    for first in range(0, len(values), max(1, rows)):
        if rows:
            yield values[first : first + rows]
        else:
            yield from parts_of(values[first], most)


@unseen
def summarise(tensor: torch.Tensor, name: str) -> TensorSummary:
    """Count what is not finite in `tensor`, which `has_nonfinite` said is worth it."""
    torch = sys.modules["torch"]
    values = values_of(tensor)
    nan = posinf = neginf = offset = 0
    first: int | None = None
    low, high = math.inf, -math.inf
    for part in () if values is None else parts_of(values, _CHUNK):
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
        first_index=unravel(first or 0, layout)[: len(shape)] if placed else None,
        finite_min=low if low <= high else None,
        finite_max=high if low <= high else None,
    )


def unravel(offset: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of the element at `offset` in row-major order."""
    index: list[int] = []
    for size in reversed(shape):
        index.append(offset % size)
        offset //= size
    return tuple(reversed(index))
