"""update_norm and update_ratio: how much an optimizer step changes the parameters.

Formula: update_norm is sqrt(sum of (p' - p)^2) over the elements of the parameters, p before the
step and p' after it; update_ratio is that over sqrt(sum of p^2). Source of the ratio: A. Karpathy's
notes for Stanford's CS231n, "Ratio of weights:updates" (about 1e-3 in healthy training). Spikes
come before spikes of the loss. Of the whole model, of the parameters below each matching module, or
of each matching parameter, where the glob matches no module. A parameter without a gradient isn't
part of it.

A parameter of up to 8,192 elements is compared whole. Of a larger one 4,096 elements at a fixed
stride are, and the squares are scaled up: the standard error is about 1 % where the changes are of
one size, and more where few rows change (an embedding's). A whole copy would cost 3 to 5 % of a
step and as much memory as the parameters; the sample costs below 1 %.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

from ..judge import Judge
from ..modules import Names
from ..named import NamedParameters
from ..rules import Rule
from ..tensors import change_norms, copies_of, samples_again, samples_of
from .base import Event, Watch

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

_WHOLE_UP_TO = 8_192
_SAMPLE = 4_096


@dataclass(frozen=True)
class _Place:
    """A parameter, the modules around it that a rule looks at, and the rules that name it.

    Weakly, and it is looked at whether it is that one: ids are given again to those of the next
    model. One of no module may turn out to have one, when there are more names than at `version`.
    """

    parameter: ref[torch.Tensor]
    version: int
    holders: tuple[ref[Module], ...] = ()
    owner: ref[Module] | None = None
    name: str = ""
    rules: tuple[Rule, ...] = ()

    @property
    def is_wanted(self) -> bool:
        return bool(self.holders or self.rules)


class UpdateSize(Watch, ABC):
    """Measures both metrics of one optimizer step; `metric` says which of them."""

    metric: ClassVar[str]
    _headline: ClassVar[str]

    def __init__(self, names: Names, judge: Judge) -> None:
        self._names = names
        self._judge = judge
        #: Of the step that is running: each parameter, what of it is compared, and a copy of that.
        self._before: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        #: Told of each parameter the norm of its change and its own before, if somebody keeps them.
        self.note: Callable[[torch.Tensor, float, float], None] | None = None
        self._named = NamedParameters(names)
        #: By id of a parameter.
        self._places: dict[int, _Place] = {}

    def arm(self, rules: Sequence[Rule]) -> None:
        self._whole = any(rule.reads_whole(self.metric) for rule in rules)
        self._bound = any(rule.reads_bound(self.metric) for rule in rules)
        self._named.arm([rule for rule in rules if rule.reads_bound(self.metric)])
        self._places.clear()

    def on_before_update(self, optimizer: Any) -> None:
        """Copy what is compared."""
        stepped = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and (self._whole or self._place(parameter).is_wanted)
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
        found: list[tuple[torch.Tensor, float, float]] = []
        for (parameter, sample, _), change, size in zip(before, changes, sizes, strict=True):
            factor = sqrt(parameter.numel() / max(sample.numel(), 1))
            found.append((parameter, change * factor, size * factor))
        if self.note is not None:
            for item in found:
                self.note(*item)
        if self._whole:
            norms = [(change, size) for _, change, size in found]
            self._look(norms, self._judge.whole(self.metric), optimizer)
        if self._bound:
            self._look_at_places(found, optimizer)

    def _look_at_places(
        self, found: list[tuple[torch.Tensor, float, float]], optimizer: Any
    ) -> None:
        """Look at the rules of single parameters, then at those of modules."""
        below: dict[Module, list[tuple[float, float]]] = {}
        for parameter, change, size in found:
            place = self._place(parameter)
            owner = None if place.owner is None else place.owner()
            if owner is not None:
                self._look([(change, size)], place.rules, optimizer, owner, place.name)
            for holder in place.holders:
                if (module := holder()) is not None:
                    below.setdefault(module, []).append((change, size))
        for module, norms in below.items():
            self._look(norms, self._judge.bound(self.metric, module), optimizer, module)

    def _place(self, parameter: torch.Tensor) -> _Place:
        """What rules look at around `parameter`; nothing outside of modules."""
        place = self._places.get(id(parameter))
        version = self._names.version
        if (
            place is None
            or place.parameter() is not parameter
            or (place.owner is None and place.version != version)
        ):
            owner, name = self._names.owner(parameter)
            place = _Place(ref(parameter), version)
            if owner is not None:
                around = self._names.ancestors(owner)
                holders = tuple(ref(m) for m in around if self._judge.bound(self.metric, m))
                rules = self._named.rules(owner, name)
                place = _Place(ref(parameter), version, holders, ref(owner), name, rules)
            self._places[id(parameter)] = place
        return place

    @abstractmethod
    def _value(self, found: list[tuple[float, float]]) -> float | None:
        """The size of an update, by the norms of changes and parameters."""

    def _look(
        self,
        norms: list[tuple[float, float]],
        rules: Sequence[Rule],
        optimizer: Any,
        module: Module | None = None,
        name: str = "",
    ) -> None:
        """Look at rules on the model, on a module, or on its parameter of this name."""
        value = self._value(norms) if rules else None
        if value is None:
            return

        def event() -> Event:
            whose, values = "of all its parameters", {"optimizer": optimizer}
            if module is not None:
                whose = f"of parameter {name} of" if name else "of the parameters of"
                if name:
                    values["parameter"] = module._parameters[name]
            return Event(
                name=self.metric,
                module=module,
                entered=None,
                headline=f"{type(optimizer).__name__}.step: {self._headline} {value:.6g} {whose}",
                sentences=(),
                value=value,
                values=values,
            )

        self._judge.measured(self.metric, value, rules, event, module=module, part=name or None)


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
