"""nonfinite, phase update: NaN and Inf that an optimizer step writes, or a module's own update.

Formula: before `optimizer.step()`, an element of a buffer of the model that was written since the
step before (BatchNorm's statistics) is NaN or infinite; after it, one of a parameter that had a
gradient, or of the optimizer's state. After `clip_grad_norm_`: an element of a gradient is, since
the total norm was infinite. Deliberate -inf (masks) counts as finite.

Cost: one fused 2-norm of the small or newly written buffers per step, and of the parameters at
those steps that could make a NaN of finite numbers at all (see `bounded`), else at every sixteenth.
The state is read after the first step, where the parameter is float16, and where squares may
overflow (a gradient's norm above 1e18); else finite gradients leave it finite.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any, ClassVar

from .. import explain
from ..bounded import Bounded, is_ordinary
from ..frames import calling_frame
from ..judge import Judge
from ..modules import Names
from ..ops.suspect import BufferSuspect, Suspect
from ..rules import Rule
from ..tensors import has_nonfinite, norms_of, summarise
from ..values.owners import name_of
from .base import (
    LOSS,
    STATE,
    Event,
    Watch,
    gradient_part,
    mark_as_told,
    state_part,
    was_told_before_backward,
)

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

#: The norm of a gradient above which squaring may overflow in float32.
_LARGE = 1e18
#: Buffers up to this size are read at each step.
_SMALL = 1 << 14


class NonfiniteUpdate(Watch):
    """Stops at the optimizer step (or clipping) that wrote a NaN or an infinity."""

    metric: ClassVar[str] = "nonfinite"
    options: ClassVar[tuple[str, ...]] = ("update",)
    least_gradient = _LARGE

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
        self._bounded = Bounded(known_norms)
        #: The first parameter with a bad gradient, while clipping runs.
        self._unsound: tuple[torch.Tensor, ...] = ()
        #: Rules that have been told of this step's fault (False), or of bad gradients since the
        #: last backward began (True): what several optimizers make of those is one fault.
        self._told: set[tuple[int, bool]] = set()
        self._rules: tuple[Rule, ...] = ()
        #: Whether the last backward began from a bad loss.
        self._is_spoilt = False
        #: Optimizers whose whole state was read once.
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        #: Parameters, by id, whose state has to be read after the coming step.
        self._large: set[int] = set()
        #: The modules below each root that have buffers, when it was first looked at; and of each
        #: buffer the version that was looked at and whether it was bad.
        self._holders: weakref.WeakKeyDictionary[
            Module, list[tuple[weakref.ref[Module], dict[str, tuple[int, bool]]]]
        ] = weakref.WeakKeyDictionary()

    def arm(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        self._large.clear()

    # Backward and clipping -----------------------------------------------------------------------

    def on_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """New gradients; those of a bad loss are no news to a rule that looks at losses."""
        tensor = sys.modules["torch"].Tensor
        self._is_spoilt = any(isinstance(root, tensor) and has_nonfinite(root) for root in roots)
        if sys.modules["torch"]._C._current_graph_task_id() == -1:
            self._told.clear()

    def on_parameter_gradient(
        self, owner: Module | None, name: str, parameter: torch.Tensor, norm: float | None
    ) -> None:
        """Note which gradients are so large that the optimizer's state may overflow."""
        if norm is not None and not norm < _LARGE:
            self._large.add(id(parameter))

    def on_clipping(self, parameters: Sequence[torch.Tensor]) -> None:
        """Note which gradient is bad, where that costs no wait: all may be NaN afterwards."""
        norms = self._known_norms(parameters)
        self._unsound = next(
            ((one,) for one, norm in zip(parameters, norms) if _has_bad_gradient(one, norm)), ()
        )

    @property
    def clips_bad_gradient(self) -> bool:
        """Then each operation is recorded, to name the one that writes it."""
        return bool(self._unsound)

    def on_clipped(self, parameters: Sequence[torch.Tensor], total_norm: float) -> None:
        """An infinite total norm turns the infinite gradients into NaN and the others into 0."""
        unsound, self._unsound = self._unsound, ()
        if isfinite(total_norm):
            self._bounded.clipped(parameters, total_norm)
            return
        if (self._scale_of(None) or 1.0) > 1.0:
            return  # a gradient scaler probes, and will skip the step
        for parameter in (*unsound, *parameters):
            gradient = parameter.grad
            if gradient is not None and has_nonfinite(gradient):
                name = self._name(parameter)
                self._report(
                    parameter,
                    gradient_part(parameter),
                    (gradient, f"{name}.grad"),
                    "in a gradient, after clipping, of",
                    explain.clipped(name, total_norm),
                    {"parameter": parameter, "gradient": gradient},
                    from_gradients=True,
                    reason=explain.BEFORE_CLIPPING if isnan(total_norm) else explain.NOT_RECORDED,
                )
                return

    def _name(self, parameter: torch.Tensor) -> str:
        return name_of(parameter, self._names, calling_frame(None))

    def is_risky(self, optimizer: Any) -> bool:
        """Whether the step that it is about to make may turn finite numbers into others.

        Then each of its operations is recorded, to name the one that does.
        """
        half = sys.modules["torch"].float16
        return bool(self._rules) and (
            bool(self._large)
            or not all(map(is_ordinary, optimizer.param_groups))
            or any(
                item.dtype is half
                for group in optimizer.param_groups
                for item in group["params"][:1]
            )
        )

    # The step ------------------------------------------------------------------------------------

    def on_before_update(self, optimizer: Any) -> None:
        """One stop a step: what else it writes has the same reason.

        Look at buffers written since the step before: the forward that wrote them can be run again
        as long as its parameters are there.
        """
        self._told = {told for told in self._told if told[1]}
        self._look_at_buffers()

    def on_after_update(self, optimizer: Any) -> None:
        """Look at what the step wrote."""
        stepped = [
            (parameter, group)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        self._rearm()
        if not self._bounded.covers(optimizer, stepped):
            self._look_at_parameters(optimizer, stepped)
        whole, half = optimizer not in self._known, sys.modules["torch"].float16
        for parameter, group in stepped:
            if whole or id(parameter) in self._large or parameter.dtype is half:
                self._look_at_state(optimizer, group, parameter)
        self._known.add(optimizer)
        self._large.clear()

    def _look_at_parameters(
        self, optimizer: Any, stepped: Sequence[tuple[torch.Tensor, dict[str, Any]]]
    ) -> None:
        norms = norms_of([parameter for parameter, _ in stepped])
        self._bounded.was_read(optimizer, norms)
        for (parameter, group), norm in zip(stepped, norms, strict=True):
            if norm is not None and not isfinite(norm) and has_nonfinite(parameter):
                self._report_parameter(optimizer, group, parameter)

    def _look_at_state(
        self, optimizer: Any, group: dict[str, Any], parameter: torch.Tensor
    ) -> None:
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, sys.modules["torch"].Tensor) or not has_nonfinite(value):
                continue
            gradient = parameter.grad
            if has_nonfinite(parameter) or (gradient is not None and has_nonfinite(gradient)):
                return  # it follows from that
            name = self._name(parameter)
            self._report(
                parameter,
                ("state", id(parameter), key),
                (value, f"{key} of {name}"),
                f"in the state ({key}) of {type(optimizer).__name__} for a parameter of",
                _why(optimizer, group, parameter, f"state {key!r} of parameter {name}"),
                {"parameter": parameter, "gradient": gradient, key: value},
            )
            return

    def _report_parameter(
        self, optimizer: Any, group: dict[str, Any], parameter: torch.Tensor
    ) -> None:
        owner, name = self._names.owner(parameter)[0], self._name(parameter)
        state = dict(optimizer.state.get(parameter, {}))
        gradient = parameter.grad
        is_bad = gradient is not None and has_nonfinite(gradient)
        why = _why(optimizer, group, parameter, f"parameter {name}")
        if is_bad and self._scale_of(None) is not None:
            why = f"{why} {explain.NOT_SKIPPED}"
        self._report(
            parameter,
            state_part(owner, parameter),
            (parameter, name),
            f"written by {type(optimizer).__name__}.step into parameter {name} of",
            why,
            {"parameter": parameter, "gradient": gradient, "state": state, "options": group},
            from_gradients=is_bad,
        )

    # Buffers -------------------------------------------------------------------------------------

    def _look_at_buffers(self) -> None:
        """Look at the buffers that were written since, small ones always.

        Batch normalisation writes its statistics without counting up their version.
        """
        written: list[tuple[Module, str, torch.Tensor, int, dict[str, tuple[int, bool]]]] = []
        for root in self._names.roots():
            holders = self._holders.get(root)
            if holders is None:
                found = [module for module in root.modules() if module._buffers]
                holders = self._holders[root] = [(weakref.ref(module), {}) for module in found]
            for reference, known in holders:
                module = reference()
                if module is None:
                    continue
                for name, buffer in module._buffers.items():
                    if buffer is None or not buffer.is_floating_point():
                        continue
                    before = known.get(name)
                    version = -1 if buffer.is_inference() else buffer._version
                    if before is None or before[0] != version or buffer.numel() <= _SMALL:
                        written.append((module, name, buffer, version, known))
        norms = norms_of([buffer for _, _, buffer, _, _ in written])
        for (module, name, buffer, version, known), norm in zip(written, norms, strict=True):
            bad = norm is not None and not isfinite(norm) and has_nonfinite(buffer)
            before, known[name] = known.get(name), (version, bad)
            if bad and before is not None and not before[1]:  # it may well begin so
                self._report_buffer(module, name, buffer)

    def _report_buffer(self, module: Module, name: str, buffer: torch.Tensor) -> None:
        summary = summarise(buffer, name)
        if summary.nan or summary.posinf:
            self._report(
                module,
                STATE,
                (buffer, name),
                f"written into buffer {name} of",
                explain.written_in_forward(type(module).__name__),
                {"buffer": buffer},
                suspect=BufferSuspect(
                    buffer, root=self._names.root_and_path(module)[0], owner=module, name=name
                ),
            )

    # Rules ---------------------------------------------------------------------------------------

    def _report(
        self,
        of: Module | torch.Tensor,
        part: Hashable,
        bad: tuple[torch.Tensor, str],
        where: str,
        why: str,
        values: dict[str, Any],
        *,
        from_gradients: bool = False,
        reason: str = explain.NOT_RECORDED,
        suspect: Suspect | None = None,
    ) -> None:
        """Tell the rules that look at `of`, a parameter or the module of a buffer."""
        is_tensor = isinstance(of, sys.modules["torch"].Tensor)
        owner: Any = self._names.owner(of)[0] if is_tensor else of
        path = "" if owner is None else self._names.path(owner, owner)
        looking: list[Rule] = []
        for rule in self._rules:
            if not rule.looks_at(path):
                continue
            if (rule.id, from_gradients) in self._told or (
                from_gradients and self._is_spoilt and was_told_before_backward(rule)
            ):
                self._mark(rule, of, owner, part)
            else:
                looking.append(rule)
        if not looking:
            return

        def event() -> Event:
            summary = summarise(*bad)
            return Event(
                name="nonfinite.update",
                module=owner,
                entered=None,
                headline=explain.headline(summary, where) + (" no module" if owner is None else ""),
                sentences=(explain.describe(summary), why),
                value=summary.nan + summary.posinf + summary.neginf,
                tensor=summary,
                values=values,
                suspect=suspect or Suspect(bad[0], reason),
            )

        self._judge.measured(
            "nonfinite", True, looking, event, module=owner, part=part, option="update"
        )
        for rule in looking:
            if (id(owner), part) in rule.true_at:
                self._told.add((rule.id, from_gradients))
                self._mark(rule, of, owner, part)
                rule.true_at.add((id(None), LOSS))  # what the program computes of it

    def _mark(self, rule: Rule, of: Any, owner: Module | None, part: Hashable) -> None:
        rule.true_at.add((id(owner), part))
        if of is not owner and part == state_part(owner, of):
            mark_as_told(rule, self._names, owner, of)

    def _rearm(self) -> None:
        """Forget the places whose parameters and buffers are finite again."""
        if not any(part == STATE for rule in self._rules for _, part in rule.true_at):
            return
        for root in self._names.roots():
            for module in root.modules():
                place = (id(module), STATE)
                rules = [rule for rule in self._rules if place in rule.true_at]
                if rules and not any(map(has_nonfinite, _state_of(module))):
                    for rule in rules:
                        rule.true_at.discard(place)


def _state_of(module: Module) -> Iterator[torch.Tensor]:
    for tensors in (module._parameters, module._buffers):
        yield from (tensor for tensor in tensors.values() if tensor is not None)


def _why(optimizer: Any, group: dict[str, Any], parameter: torch.Tensor, what: str) -> str:
    """Why the step wrote it, as far as what is there after the step tells."""
    name = type(optimizer).__name__
    gradient = parameter.grad
    if gradient is not None and has_nonfinite(gradient):
        return f"The gradient that {name} applied was itself not finite."
    if not isfinite(float(group.get("lr", 0.0))):
        return f"The learning rate is {float(group['lr'])}."
    eps = group.get("eps")
    dtype = str(parameter.dtype).removeprefix("torch.")
    if isinstance(eps, float) and eps > 0:
        rounded = sys.modules["torch"].tensor(eps, dtype=parameter.dtype).item()
        if rounded == 0:
            return (
                f"The gradient is finite: {name} made it. Its eps = {eps:g} is 0 in {dtype}, so "
                "where the running average of squares is 0 as well it divides 0 by 0."
            )
    norm = norms_of([gradient])[0] if gradient is not None else None
    size = "" if norm is None else f" (norm {norm:.4g})"
    return (
        f"The gradient{size} is finite: the arithmetic of {name}.step on {what} overflowed or "
        f"divided by zero (lr = {float(group.get('lr', 0)):g}, {dtype})."
    )


def _has_bad_gradient(parameter: torch.Tensor, norm: float | None) -> bool:
    gradient = parameter.grad
    if gradient is None or not gradient.is_cpu:
        return False
    return not (norm is not None and isfinite(norm)) and has_nonfinite(gradient)
