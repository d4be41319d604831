"""The metrics of the condition language as functions of any value, for breakpoint conditions,
watches and the console: `nonfinite(x)`, `grad_norm(self.fc1.weight) > 3`, `entropy(att) < 0.2`.

A value is a tensor, a module (its parameters), or whatever holds tensors. Each raises TypeError for
what it can't measure: a condition that silently is false would never stop.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ..tensors import (
    absmax_of,
    has_nonfinite,
    norms_of,
    tensors_in,
    unseen,
    values_of,
    zero_fraction_of,
)
from . import devices
from .known import Known
from .plain import is_module, is_tensor, plain, read


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
    return any(has_nonfinite(tensor) for tensor in _tensors(value, "nonfinite"))


def absmax(value: Any) -> float:
    """The largest magnitude; NaN if there is one."""
    found = [absmax_of(tensor) for tensor in _tensors(value, "absmax")]
    numbers = [number for number in found if number is not None]
    if any(number != number for number in numbers):
        return math.nan
    return max(numbers, default=0.0)


def zero_fraction(value: Any) -> float:
    """The share of elements that are exactly 0."""
    zeros = total = 0.0
    for tensor in _tensors(value, "zero_fraction"):
        share = zero_fraction_of(tensor)
        if share is not None:
            zeros += share * tensor.numel()
            total += tensor.numel()
    return zeros / total if total else 0.0


def norm(value: Any) -> float:
    """The 2-norm of all tensors in `value`."""
    return _joined(norms_of(list(_tensors(value, "norm"))))


def grad_norm(value: Any) -> float:
    """The 2-norm of the gradients: of a parameter, of all of a module, of all in a container."""
    tensors = list(_tensors(value, "grad_norm"))
    gradients = [gradient for tensor in tensors if (gradient := _gradient(tensor)) is not None]
    return _joined(norms_of(gradients))


def no_grad(value: Any) -> bool:
    """Whether a parameter that requires a gradient has none."""
    return any(
        read(tensor, "requires_grad") and _gradient(tensor) is None
        for tensor in _tensors(value, "no_grad")
    )


@unseen
def entropy(weights: Any) -> float:
    """Normalised entropy of attention weights (the last dimension sums to 1): 0 to 1.

    Of weights [batch, head, query, key] the lowest head counts, as for the metric; else the mean
    over all rows. A row is normalised by the number of its weights that aren't 0 by a mask.
    """
    if not is_tensor(weights):
        raise TypeError(f"entropy: {type(weights).__name__} is no tensor of attention weights")
    _readable(weights, "entropy")
    values = values_of(weights)
    if values is None or values.dim() == 0 or values.numel() == 0:
        raise TypeError("entropy: it needs a floating tensor with at least one dimension")
    torch = sys.modules["torch"]
    values = values.float()
    visible = (values > 0).sum(-1)
    rows = torch.special.entr(values).sum(-1)
    counts = visible > 1
    share = torch.where(counts, rows / visible.clamp(min=2).log(), torch.zeros_like(rows))
    if share.dim() >= 3:
        heads = share.transpose(0, -2).reshape(share.shape[-2], -1)
        seen = counts.transpose(0, -2).reshape(share.shape[-2], -1).sum(1).clamp(min=1)
        return float((heads.sum(1) / seen).amin().item())
    return float((share.sum() / counts.sum().clamp(min=1)).item())


def _joined(norms: list[float | None]) -> float:
    return math.sqrt(math.fsum(item * item for item in norms if item is not None))


def _gradient(tensor: Any) -> Any:
    return read(tensor, "grad") if read(tensor, "is_leaf") or read(tensor, "retains_grad") else None


def _tensors(value: Any, name: str) -> Iterator[Any]:
    if is_module(value):
        parameters = sys.modules["torch.nn"].Module.parameters(value)
        found = list(parameters)
    else:
        found = [tensor for _, tensor in tensors_in(value, "")]
    if not found:
        raise TypeError(f"{name}: there is no tensor in this {type(value).__name__}")
    for tensor in map(plain, found) if name not in _OF_GRADIENTS else found:
        _readable(tensor, name)
        yield tensor


#: These look at a tensor's `grad`, which a plain view of it hasn't.
_OF_GRADIENTS = ("grad_norm", "no_grad")


def _readable(tensor: Any, name: str) -> None:
    reason = devices.why_not(tensor)
    if reason is not None:
        raise TypeError(f"{name}: {reason}")
