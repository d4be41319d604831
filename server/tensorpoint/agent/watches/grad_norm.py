"""grad_norm: the 2-norm of gradients, of the whole model, below a module, or of one parameter.

Formula: sqrt(sum of squares of `.grad`), over the parameters below each matching module; a glob
that matches no module is matched against the paths of parameters. The gradient is what has been
accumulated so far, divided by the gradient scaler's scale where it is still multiplied by it.
Sources: the documentation of `torch.nn.utils.clip_grad_norm_` (the norm of the norms of all
gradients, as if they were one vector), and of automatic mixed precision (unscaled before it).

Per module it is known inside `backward()`, when the last of its parameters that get a gradient has
it, so the stop is at the layer that crosses first; which parameters those are is learned
from the pass before, and what is incomplete then is looked at when the pass ends.

Of the whole model it is known when the optimizer is about to step, or from `clip_grad_norm_`,
where it is the norm before clipping. A step that a gradient scaler skips has no norm.

Cost: one 2-norm per parameter for module globs (1 % of a step of a GPT-2-like model, shared with
`nonfinite`), one fused norm per step for the whole model (0.6 %), nothing beside `clip_grad_norm_`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import hypot, isfinite
from typing import TYPE_CHECKING, Any, ClassVar

from ..judge import Judge
from ..modules import Names
from ..named import NamedParameters
from ..rules import Rule
from ..tensors import norms_of
from .base import Event, Watch

if TYPE_CHECKING:
    import torch
    from torch.nn import Module


@dataclass(eq=False)
class _Group:
    """The gradients below one module that a rule looks at."""

    module: weakref.ref[Module]
    rules: tuple[Rule, ...]
    #: The parameters to wait for, by id: those that got a gradient in the pass before.
    expected: frozenset[int]
    missing: int
    #: The norm up to which none of the rules is interested.
    limit: float
    arrived: dict[int, float] = field(default_factory=dict[int, float])
    measured: bool = False


class GradNorm(Watch):
    """Measures gradient norms."""

    metric: ClassVar[str] = "grad_norm"

    def __init__(
        self,
        names: Names,
        judge: Judge,
        scale_of: Callable[[torch.Tensor | None], float | None],
        known_norms: Callable[[Iterable[torch.Tensor]], list[float | None]],
    ) -> None:
        self._names = names
        self._judge = judge
        self._scale_of = scale_of
        self._known_norms = known_norms
        self._bound = False
        self._whole = False
        #: What the gradients of this pass are multiplied by.
        self._scale: float | None = None
        self._by_module: weakref.WeakKeyDictionary[Module, _Group] = weakref.WeakKeyDictionary()
        self._named = NamedParameters(names)
        #: By id of a parameter: it, its groups, and rules that name it. It is looked at whether it
        #: is that one: ids are given again to those of the next model.
        self._of: dict[
            int, tuple[weakref.ref[torch.Tensor], tuple[_Group, ...], tuple[Rule, ...]]
        ] = {}
        #: Parameters that were clipped since the last step: their norm is known.
        self._clipped: set[int] = set()
        #: Or some were, and it isn't known which: then all count as clipped.
        self._clipped_unknown = False

    def arm(self, rules: Sequence[Rule]) -> None:
        self._bound = any(rule.reads_bound(self.metric) for rule in rules)
        self._whole = any(rule.reads_whole(self.metric) for rule in rules)
        per_module = frozenset({"on_parameter_gradient", "on_backward_end"})
        self.deaf_to = frozenset() if self._bound else per_module
        self._named.arm([rule for rule in rules if rule.reads_bound(self.metric)])
        self._by_module = weakref.WeakKeyDictionary()
        self._of = {}

    # Per module, inside backward -----------------------------------------------------------------

    def on_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """Ask once what the gradients are multiplied by: on CUDA that waits for the device."""
        self._scale = self._scale_of(None)

    def _counts(self, norm: float) -> bool:
        """Not an overflow at which a gradient scaler will skip the step."""
        return isfinite(norm) or not (self._scale is not None and self._scale > 1)

    def on_parameter_gradient(
        self, owner: Module | None, name: str, parameter: torch.Tensor, norm: float | None
    ) -> None:
        """Add the gradient to the groups it belongs to."""
        if not self._bound or norm is None or owner is None:
            return
        if self._scale is not None:
            norm /= self._scale
        if not self._counts(norm):
            return
        found = self._of.get(id(parameter))
        if found is None or found[0]() is not parameter:
            groups, rules = self._find_groups(owner), self._named.rules(owner, name)
            self._of[id(parameter)] = found = weakref.ref(parameter), groups, rules
        _, groups, rules = found
        key = id(parameter)
        for group in groups:
            if key not in group.arrived and key in group.expected:
                group.missing -= 1
            group.arrived[key] = norm
            if not group.missing:
                self._measure(group)
        if rules:
            self._look(norm, rules, owner, name, f"2-norm of the gradient of parameter {name} of")

    def on_backward_end(self, results: Sequence[torch.Tensor | None]) -> None:
        """Measure what was not complete before, and learn which parameters get gradients."""
        for group in list(self._by_module.values()):
            if not group.arrived:
                continue
            if not group.measured:
                self._measure(group)
            group.expected = frozenset(group.arrived)
            group.missing = len(group.expected)
            group.arrived = {}
            group.measured = False

    def _find_groups(self, owner: Module) -> tuple[_Group, ...]:
        """The groups of the modules from the root down to `owner` that a rule looks at."""
        found: list[_Group] = []
        for module in self._names.ancestors(owner):
            group = self._by_module.get(module)
            if group is None:
                rules = self._judge.bound(self.metric, module)
                wanted = (p for p in module.parameters() if p.requires_grad) if rules else ()
                expected = frozenset(map(id, wanted))
                limit = self._judge.limit(self.metric, rules)
                group = _Group(weakref.ref(module), rules, expected, len(expected), limit)
                self._by_module[module] = group
            if group.rules:
                found.append(group)
        return tuple(reversed(found))

    def _measure(self, group: _Group) -> None:
        group.measured = True
        module = group.module()
        if module is None:
            return
        norm = hypot(*group.arrived.values())
        if norm <= group.limit and not any(rule.true_at for rule in group.rules):
            return
        parameters = len(group.arrived)
        self._look(
            norm,
            group.rules,
            module,
            None,
            f"2-norm of the gradients of {parameters} parameter{'s' * (parameters > 1)} of",
        )

    # The whole model, before the optimizer steps --------------------------------------------------

    def on_clipped(self, parameters: Sequence[torch.Tensor], total_norm: float) -> None:
        """The norm before clipping."""
        self._clipped = {id(parameter) for parameter in parameters}
        self._clipped_unknown = not parameters
        if self._whole and self._counts(total_norm):
            self._look_at_whole(total_norm, "at clip_grad_norm_, before clipping")

    def on_before_update(self, optimizer: Any) -> None:
        """The norm of all gradients that this optimizer applies."""
        if not self._whole:
            return
        parameters = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        if self._clipped_unknown or (parameters and {*map(id, parameters)} <= self._clipped):
            return  # measured at the clipping, before it
        norms = self._known_norms(parameters)
        if None in norms:  # nothing listens to each gradient, or they were changed since
            norms = norms_of([parameter.grad for parameter in parameters])
        if self._scale_of(None) is None:  # of none of them
            known = [norm for norm in norms if norm is not None]
        else:
            known = [
                norm / (self._scale_of(parameter) or 1.0)
                for parameter, norm in zip(parameters, norms, strict=True)
                if norm is not None
            ]
        if known and self._counts(hypot(*known)):
            self._look_at_whole(hypot(*known), f"of {type(optimizer).__name__}'s parameters")

    def on_after_update(self, optimizer: Any) -> None:
        """The next clipping is another one's."""
        self._clipped.clear()
        self._clipped_unknown = False

    def _look_at_whole(self, norm: float, what: str) -> None:
        self._look(norm, self._judge.whole(self.metric), None, None, f"global gradient norm {what}")

    def _look(
        self,
        norm: float,
        rules: Sequence[Rule],
        module: Module | None,
        name: str | None,
        what: str,
    ) -> None:
        def event() -> Event:
            values: dict[str, Any] = {} if module is None else {"module": module}
            if module is not None and name is not None:
                values["parameter"] = module._parameters[name]
            return Event(
                name="grad_norm",
                module=module,
                entered=None,
                headline=f"gradient norm {norm:.6g}: {what}" if module else f"{what}: {norm:.6g}",
                sentences=(),
                value=norm,
                values=values,
            )

        self._judge.measured(self.metric, norm, rules, event, module=module, part=name)
