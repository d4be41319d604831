"""Which optimizer steps can't write a NaN or an infinity, so that what they wrote need not be read.

Reading all parameters after each step takes 1.2 % of a step of a GPT-2-like model. For the
optimizers of torch whose formula bounds the change, finite numbers of ordinary size can't leave
the range of float32: with gradients below 1e15, eps from 1e-12 on, a learning rate up to 1e6 and a
decay of at most 1 a step, 16 steps change a parameter of below 1e15 by less than 1e35. So the
parameters are read at every sixteenth step only, which renews what is known of their size, and at
each step that is not covered: other optimizers and subclasses, float16 (where eps may be 0),
options or gradients out of these bounds, and gradients that somebody has written to after they
arrived (but for `clip_grad_norm_`, which makes them smaller).

What else writes to a parameter between two steps is found by the next forward.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

from .tensors import version_of

_COVERED = frozenset(
    ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "SGD")
)
_LARGEST = 1e15
_STEPS = 16
#: Bounds of the options of a parameter group, where it has them.
_BOUNDS = {
    "lr": (0.0, 1e6),
    "eps": (1e-12, 1e3),
    "momentum": (0.0, 1.0),
    "weight_decay": (0.0, 1e3),
    "lr_decay": (0.0, 1e3),
}


class Bounded:
    """Knows how large the parameters of each optimizer were when they were read last."""

    def __init__(self, known_norms: Callable[[Iterable[Any]], list[float | None]]) -> None:
        self._known_norms = known_norms
        #: Of each optimizer, the covered steps that are left until the next reading.
        self._left: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        #: By id of a parameter: its clipped gradient, the version of that, a bound of its norm.
        self._clipped: dict[int, tuple[ref[Any], int | None, float]] = {}

    def clipped(self, parameters: Sequence[Any], total_norm: float) -> None:
        """Gradients were multiplied by at most 1; `total_norm` bounds each norm."""
        self._clipped = {
            id(parameter): (ref(parameter.grad), version_of(parameter.grad), total_norm)
            for parameter in parameters
            if parameter.grad is not None
        }

    def was_read(self, optimizer: Any, norms: Sequence[float | None]) -> None:
        """All parameters that the optimizer has stepped were read: their norms."""
        ordinary = all(norm is not None and norm < _LARGEST for norm in norms)
        self._left[optimizer] = _STEPS if ordinary else 0

    def covers(self, optimizer: Any, stepped: Sequence[tuple[Any, dict[str, Any]]]) -> bool:
        """Whether the step that was just made leaves its parameters and state finite."""
        clipped, self._clipped = self._clipped, {}
        left = self._left.get(optimizer, 0)
        if not left or type(optimizer).__name__ not in _COVERED:
            return False
        torch = sys.modules["torch"]
        if type(optimizer) is not getattr(torch.optim, type(optimizer).__name__, None):
            return False
        if not all(map(is_ordinary, optimizer.param_groups)):
            return False
        half, parameters = torch.float16, [parameter for parameter, _ in stepped]
        for parameter, norm in zip(parameters, self._known_norms(parameters), strict=True):
            if norm is None:
                norm = _norm_after_clipping(parameter, clipped)
            if parameter.dtype is half or norm is None or not norm < _LARGEST:
                return False
        self._left[optimizer] = left - 1
        return True


def is_ordinary(group: dict[str, Any]) -> bool:
    """Whether the options of a parameter group are in the bounds of what is covered."""
    for name, (low, high) in _BOUNDS.items():
        value = group.get(name, low)
        # A learning rate may be a tensor, on any device: that is looked at by reading.
        if not isinstance(value, (int, float)) or not low <= value <= high:
            return False
    if not all(0 <= beta < 1 for beta in group.get("betas", ())):
        return False
    return group.get("lr", 0.0) * group.get("weight_decay", 0.0) <= 1.0


def _norm_after_clipping(
    parameter: Any, clipped: dict[int, tuple[ref[Any], int | None, float]]
) -> float | None:
    known = clipped.get(id(parameter))
    if known is None:
        return None
    gradient, version, norm = known
    unchanged = gradient() is parameter.grad is not None and version_of(parameter.grad) == version
    return norm if unchanged else None
