"""The metrics of the condition language as functions of any value, for breakpoint conditions,
watches and the console: `nonfinite(x)`, `grad_norm(self.fc1.weight) > 3`, `entropy(att) < 0.2`.

A value is a tensor, a module (its parameters), or whatever holds tensors. Each raises TypeError for
what it can't measure: a condition that silently is false would never stop. On CUDA each tensor is
measured as `devices` does it: a stream that hangs is told of, and not waited for.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from ..tensors import (
    absmax_of,
    has_nonfinite,
    norms_of,
    tensors_in,
    unseen,
    values_of,
)
from . import devices, figures
from .devices import Unavailable
from .known import Known
from .plain import (
    call,
    elements_of,
    gradient_of,
    is_hollow,
    is_module,
    is_on_cpu,
    is_tensor,
    keeps_gradient,
    plain,
    read,
    shape_of,
)
from .walks import parameters_in

#: More elements than memory has room for: those of an expanded tensor, which would never end.
_MOST = 1 << 36


class Measures:
    """The functions by name. Names of the program's own always come before them."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self.functions: dict[str, Callable[[Any], Any]] = {
            function.__name__: function
            for function in (
                nonfinite,
                absmax,
                zero_fraction,
                norm,
                grad_norm,
                entropy,
                no_grad,
                self.update_ratio,
            )
        }

    def update_ratio(self, parameter: Any) -> float:
        """How much the newest optimizer step changed a parameter, relatively; as recorded."""
        fact = self._known.parameter(parameter) if is_tensor(parameter) else None
        if fact is None or fact.update_ratio is None:
            raise TypeError(
                "update_ratio: not recorded for this parameter. `tp record on` and a tensorpoint "
                "on update_ratio() record it"
            )
        return fact.update_ratio


def nonfinite(value: Any) -> bool:
    """Whether a tensor in `value` has a NaN or an infinity."""
    return any(_has_nonfinite(numbers, "nonfinite") for numbers in _numbers(value, "nonfinite"))


def _has_nonfinite(numbers: Any, name: str) -> bool:
    if is_on_cpu(numbers):
        return has_nonfinite(numbers)
    return numbers.is_floating_point() and not math.isfinite(_largest(numbers, name))


def absmax(value: Any) -> float:
    """The largest magnitude; NaN if there is one, 0 where there is no element."""
    found = [
        absmax_of(numbers) if is_on_cpu(numbers) else _largest(numbers, "absmax")
        for numbers in _floating(value, "absmax")
    ]
    numbers = [number for number in found if number is not None]
    if any(number != number for number in numbers):
        return math.nan
    return max(numbers, default=0.0)


def zero_fraction(value: Any) -> float:
    """The share of elements that are exactly 0; also of those that a sparse tensor doesn't keep."""
    zeros = total = 0.0
    for tensor in _tensors(value, "zero_fraction"):
        numbers = _numbers_of(tensor, "zero_fraction")
        # A sparse one keeps fewer than it has; of a distributed one the others are elsewhere.
        is_whole = read(tensor, "layout") is sys.modules["torch"].strided
        count = elements_of(numbers) if is_whole else elements_of(tensor)
        zeros += count - _count_nonzero(numbers, "zero_fraction")
        total += count
    return zeros / total if total else 0.0


def _count_nonzero(numbers: Any, name: str) -> float:
    torch = sys.modules["torch"]
    signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
    kind = signed.get(numbers.dtype)  # (torch counts none of these.)
    return _measured(numbers if kind is None else numbers.view(kind), torch.count_nonzero, name)


def norm(value: Any) -> float:
    """The 2-norm of all tensors in `value`."""
    return _joined_norm(_floating(value, "norm"), "norm")


def grad_norm(value: Any) -> float:
    """The 2-norm of the gradients: of a parameter, of all of a module, of all in a container."""
    gradients = (gradient_of(tensor) for tensor in _trained(value, "grad_norm"))
    found = [gradient for gradient in gradients if gradient is not None]
    return _joined_norm([_numbers_of(gradient, "grad_norm") for gradient in found], "grad_norm")


def no_grad(value: Any) -> bool:
    """Whether a parameter that requires a gradient has none."""
    return any(gradient_of(tensor) is None for tensor in _trained(value, "no_grad"))


@unseen
def entropy(weights: Any) -> float:
    """Normalised entropy of attention weights (the last dimension sums to 1): 0 to 1.

    Of weights [batch, head, query, key] the lowest head counts, as for the metric; else the mean
    over all rows. A row is normalised by the number of its weights that aren't 0 by a mask.
    """
    if not is_tensor(weights):
        raise TypeError(f"entropy: {type(weights).__name__} is no tensor of attention weights")
    _numbers_of(weights, "entropy")  # says why where there are none
    values = values_of(weights)
    shape = shape_of(weights)
    if values is None or not shape or values.dim() != len(shape) or values.numel() == 0:
        raise TypeError("entropy: it needs a dense floating tensor with at least one dimension")
    return _measured(values, _lowest_entropy, "entropy")


def _lowest_entropy(weights: Any) -> Any:
    torch = sys.modules["torch"]
    values = weights.float()
    visible = (values > 0).sum(-1)
    rows = torch.special.entr(values).sum(-1)
    counts = visible > 1
    share = torch.where(counts, rows / visible.clamp(min=2).log(), torch.zeros_like(rows))
    if share.dim() >= 3:
        heads = share.transpose(0, -2).reshape(share.shape[-2], -1)
        seen = counts.transpose(0, -2).reshape(share.shape[-2], -1).sum(1).clamp(min=1)
        return (heads.sum(1) / seen).amin()
    return share.sum() / counts.sum().clamp(min=1)


@unseen
def _measured(numbers: Any, work: Callable[[Any], Any], name: str) -> float:
    """The number that `work` makes of a tensor where that is. Raises TypeError where none comes."""
    found = devices.fetch(numbers, lambda: work(numbers))
    if isinstance(found, Unavailable):
        raise TypeError(f"{name}: {found.reason}")
    return float(found)


def _largest(numbers: Any, name: str) -> float:
    """The largest magnitude, NaN if there is one: one pass without a temporary."""
    norm = sys.modules["torch"].linalg.vector_norm
    return _measured(numbers, lambda x: norm(x, math.inf), name) if elements_of(numbers) else 0.0


def _joined_norm(numbers: list[Any], name: str) -> float:
    torch = sys.modules["torch"]
    at_once: list[Any] = []
    norms: list[float] = []
    for item in numbers:
        if is_on_cpu(item) and item.element_size() > 2:
            at_once.append(item)
            continue
        # (The norm of halves can be too large for their type.)
        dtype = torch.float64 if item.dtype is torch.float64 else torch.float32
        norms.append(_measured(item, partial(torch.linalg.vector_norm, dtype=dtype), name))
    norms += [norm for norm in norms_of(at_once) if norm is not None]
    return math.sqrt(math.fsum(norm * norm for norm in norms))


def _tensors(value: Any, name: str) -> list[Any]:
    found = (
        [*parameters_in(value)]
        if is_module(value)
        else [tensor for _, tensor in tensors_in(value, "")]
    )
    if not found:
        raise TypeError(f"{name}: there is no tensor in this {type(value).__name__}")
    return found


def _trained(value: Any, name: str) -> list[Any]:
    """The tensors that a backward pass leaves a gradient in. Raises TypeError if none is."""
    found = [tensor for tensor in _tensors(value, name) if read(tensor, "requires_grad")]
    if not found:
        raise TypeError(f"{name}: nothing in this {type(value).__name__} requires a gradient")
    kept = [tensor for tensor in found if keeps_gradient(tensor)]
    if not kept:
        raise TypeError(f"{name}: it is no leaf; torch keeps its gradient after retain_grad() only")
    return kept


def _numbers(value: Any, name: str) -> list[Any]:
    return [_numbers_of(tensor, name) for tensor in _tensors(value, name)]


def _floating(value: Any, name: str) -> list[Any]:
    """The numbers, also those of integers, in a type that has a norm."""
    return [
        numbers if numbers.is_floating_point() else _real(numbers, name)
        for numbers in _numbers(value, name)
    ]


def _real(numbers: Any, name: str) -> Any:
    try:
        return figures.real(numbers)
    except NotImplementedError as error:  # bits that torch gives no number to
        raise TypeError(f"{name}: {error}") from None


@unseen
def _numbers_of(tensor: Any, name: str) -> Any:
    """A tensor's numbers as a plain real one. Raises TypeError where there are none to read."""
    torch = sys.modules["torch"]
    if _is_uncoalesced(tensor):
        if not is_on_cpu(tensor):
            raise TypeError(f"{name}: to coalesce a sparse tensor would wait for its device")
        tensor = call(plain(tensor), "coalesce")  # it may keep several summands of one element
    numbers, _ = figures.numbers_of(tensor, may_be_empty=True)
    if isinstance(numbers, Unavailable):
        raise TypeError(f"{name}: {numbers.reason}")
    if elements_of(numbers) > _MOST:
        raise TypeError(f"{name}: {elements_of(numbers):,} elements are too many: index it first")
    if numbers.is_floating_point() and numbers.element_size() == 1:  # float8 has no arithmetic
        return numbers.float()
    return torch.view_as_real(numbers) if numbers.is_complex() else numbers


def _is_uncoalesced(tensor: Any) -> bool:
    return (
        not is_hollow(tensor)
        and read(tensor, "layout") is sys.modules["torch"].sparse_coo
        and not call(tensor, "is_coalesced")
    )
