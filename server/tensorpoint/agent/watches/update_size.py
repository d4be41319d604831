"""update_norm and update_ratio: how much an optimizer step changes the parameters.

update_norm: 2-norm of (parameter after the step - before it). update_ratio: that over the 2-norm of
the parameter before the step (about 1e-3 in healthy training; A. Karpathy's rule of thumb). Spikes
come before spikes of the loss. Of the whole model, or of the parameters below each matching module;
a parameter without a gradient isn't part of it.

A parameter of up to 8,192 elements is compared whole. Of a larger one 4,096 elements at a fixed
stride are, and the squares are scaled up: the standard error is about 1 % where the changes are of
one size, and more where few rows change (an embedding's). A whole copy would cost 3 to 5 % of a
step and as much memory as the parameters; the sample costs below 1 %.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import hypot, sqrt
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

from ..judge import Judge
from ..modules import Names
from ..rules import Rule
from ..tensors import change_norms, copies_of, samples_again, samples_of
from .base import Event, Watch

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

_WHOLE_UP_TO = 8_192
_SAMPLE = 4_096


class UpdateSize(Watch, ABC):
    """Measures both metrics of one optimizer step; `metric` says which of them."""

    metric: ClassVar[str]
    _headline: ClassVar[str]

    def __init__(self, names: Names, judge: Judge) -> None:
        self._names = names
        self._judge = judge
        #: Of the step that is running: each parameter, what of it is compared, and a copy of that.
        self._before: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        #: Told of the update ratio of each parameter, if somebody keeps it.
        self.note: Callable[[torch.Tensor, float], None] | None = None
        #: By id of a parameter: it, and the modules around it that a rule looks at. Weakly, and it
        #: is looked at whether it is that one: ids are given again to those of the next model.
        self._known: dict[int, tuple[ref[torch.Tensor], tuple[ref[Module], ...]]] = {}

    def arm(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        self._whole = any(rule.reads_whole(self.metric) for rule in rules)
        self._bound = any(rule.reads_bound(self.metric) for rule in rules)
        self._known.clear()

    def on_before_update(self, optimizer: Any) -> None:
        """Copy what is compared."""
        stepped = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and (self._whole or self._is_wanted(parameter))
        ]
        samples = samples_of(stepped, _WHOLE_UP_TO, _SAMPLE)
        self._before = [
            (parameter, sample, copy)
            for parameter, sample, copy in zip(stepped, samples, copies_of(samples), strict=True)
            if sample is not None and copy is not None
        ]

    def on_after_update(self, optimizer: Any) -> None:
        """Compare, and look at the rules."""
        before, self._before = self._before, []
        if not before:
            return
        parameters = [parameter for parameter, _, _ in before]
        samples = [sample for _, sample, _ in before]
        after = samples_again(parameters, samples, _WHOLE_UP_TO, _SAMPLE)
        changes, sizes = change_norms([copy for _, _, copy in before], after)
        squares: list[tuple[torch.Tensor, float, float]] = []
        for (parameter, sample, _), change, size in zip(before, changes, sizes, strict=True):
            factor = sqrt(parameter.numel() / max(sample.numel(), 1))
            squares.append((parameter, change * factor, size * factor))
        if self.note is not None:
            for parameter, change, size in squares:
                if size:
                    self.note(parameter, change / size)
        if self._whole:
            value = self._value([(change, size) for _, change, size in squares])
            self._look(value, self._judge.whole(self.metric), None, optimizer)
        if self._bound:
            self._look_at_modules(squares, optimizer)

    def _look_at_modules(
        self, squares: list[tuple[torch.Tensor, float, float]], optimizer: Any
    ) -> None:
        below: dict[Module, list[tuple[float, float]]] = {}
        for parameter, change, size in squares:
            for module in self._holders(parameter):
                below.setdefault(module, []).append((change, size))
        for module, found in below.items():
            rules = self._judge.bound(self.metric, module)
            self._look(self._value(found), rules, module, optimizer)

    def _is_wanted(self, parameter: torch.Tensor) -> bool:
        return bool(self._holders(parameter))

    def _holders(self, parameter: torch.Tensor) -> list[Module]:
        """The modules around `parameter` that a rule looks at."""
        known = self._known.get(id(parameter))
        if known is None or known[0]() is not parameter:
            holders = self._names.holders(parameter)
            found = tuple(ref(m) for m in holders if self._judge.bound(self.metric, m))
            known = self._known[id(parameter)] = (ref(parameter), found)
        return [module for module in (found() for found in known[1]) if module is not None]

    @abstractmethod
    def _value(self, found: list[tuple[float, float]]) -> float | None:
        """The size of an update, by the norms of changes and parameters."""

    def _look(
        self, value: float | None, rules: Sequence[Rule], module: Module | None, optimizer: Any
    ) -> None:
        if value is None:
            return
        name = type(optimizer).__name__
        where = "of the parameters of" if module is not None else "of all its parameters"

        def event() -> Event:
            return Event(
                name=self.metric,
                module=module,
                entered=None,
                headline=f"{name}.step: {self._headline} {value:.6g} {where}",
                sentences=(),
                value=value,
                values={"optimizer": optimizer},
            )

        self._judge.measured(self.metric, value, rules, event, module=module)


class UpdateNorm(UpdateSize):
    """2-norm of what a step changed."""

    metric = "update_norm"
    _headline = "2-norm of the change"

    def _value(self, found: list[tuple[float, float]]) -> float | None:
        return hypot(*(change for change, _ in found))


class UpdateRatio(UpdateSize):
    """That over the 2-norm of the parameters before; not known where those are all 0."""

    metric = "update_ratio"
    _headline = "ratio of the change to the parameters"

    def _value(self, found: list[tuple[float, float]]) -> float | None:
        size = hypot(*(size for _, size in found))
        return hypot(*(change for change, _ in found)) / size if size else None
