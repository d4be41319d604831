"""What every watch is, and what it can hear of.

A watch has a metric, is armed with the rules that use it, and hears of what the sources (`hooks`,
`gradients`, `updates`, `taps`) tell it, on the program's threads, inside torch's hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar

from ...wire import TensorSummary
from ..modules import Call, Names
from ..ops.suspect import Suspect
from ..rules import Rule

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

    from ..attention import Attention


#: The part of a module's place that stands for its parameters and buffers being non-finite.
STATE = "state"
#: The part of no module's place that stands for the loss.
LOSS = "loss"


def state_part(owner: Module | None, parameter: torch.Tensor) -> Hashable:
    """The part that stands for `parameter` being non-finite: outside of modules its own."""
    return STATE if owner is not None else (STATE, id(parameter))


def gradient_part(parameter: torch.Tensor) -> Hashable:
    """The part that stands for the gradient of `parameter` being non-finite."""
    return "gradient", id(parameter)


def mark_as_told(rule: Rule, names: Names, owner: Module | None, parameter: torch.Tensor) -> None:
    """Let it be no news to `rule` that `parameter` is non-finite, in any module that has it."""
    place = (id(owner), state_part(owner, parameter))
    if place not in rule.true_at or owner is None:
        rule.true_at.add(place)
        rule.true_at.update((id(module), STATE) for module in names.owners(parameter))


def was_told_before_backward(rule: Rule) -> bool:
    """Whether `rule` is true somewhere in the batch, a forward, a loss, a parameter or a buffer."""
    return any(part in ("input", "forward", LOSS, STATE) for _, part in rule.true_at)


@dataclass(frozen=True)
class Event:
    """Something a watch saw.

    `module` is where it happened; None for what belongs to no module (a loss, a gradient norm of
    the whole model). `entered` is the module whose caller is the place to stop: usually the same,
    but for a value made inline in `module.forward` it is the child that received it, so that the
    stop is in that forward; None stops at the program's own line nearest to the hook. `headline`
    is followed by the module. `sentences` is the diagnosis, most important first. `values` are live
    objects for the debugger's "Tensor event" scope. `suspect` is what to run again to find the
    operation that made the value; None where that can't be.
    """

    name: str
    module: Module | None
    entered: Module | None
    headline: str
    sentences: tuple[str, ...]
    value: float | int | None = None
    tensor: TensorSummary | None = None
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    suspect: Suspect | None = None


#: Called when rules fire: suspends the thread until the user resumes. False if nothing was shown,
#: since no client is attached.
Stop = Callable[[Sequence[Rule], Event], bool]


class Watch:
    """A watch of one metric, or of some of its options (phases of `nonfinite`).

    It overrides the methods of what it needs to hear of; each source calls only those.
    """

    metric: ClassVar[str]
    #: The options that it is about; empty for all that the metric has.
    options: ClassVar[tuple[str, ...]] = ()
    #: What it has a method for but need not hear of, as it is armed now.
    deaf_to: frozenset[str] = frozenset()
    #: The norm of a gradient below which it does nothing in `on_parameter_gradient`.
    least_gradient: float = -inf

    def arm(self, rules: Sequence[Rule]) -> None:
        """Watch for exactly these rules from now on; none switches the watch off."""

    def is_meant_by(self, rule: Rule) -> bool:
        """Whether a rule uses the metric, and the option of it that this watch covers."""
        options = rule.options(self.metric) if self.options else ()
        unasked = not options or rule.asks_without_option(self.metric)
        return rule.uses(self.metric) and (unasked or bool({*options} & {*self.options}))

    # From `hooks`: module calls

    def on_root(self, call: Call) -> None:
        """A module is called that no other module's forward encloses."""

    def on_exit(self, call: Call, outer: list[Call], output: Any) -> None:
        """A module returned; `outer` are the calls around it, outermost first."""

    def on_root_exit(self, call: Call, output: Any) -> None:
        """The call of a root returned; all have heard of it by `on_exit`."""

    # From `gradients`: backward passes

    def on_engine(self, retain_graph: bool, create_graph: bool) -> None:
        """A backward pass is about to begin; said before `on_backward`."""

    def on_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """The program starts a backward pass from `roots`; a checkpoint's inside is part of it."""

    def on_inner_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """In the middle of it a node begins a backward pass of its own: a reentrant checkpoint."""

    def on_parameter_gradient(
        self, owner: Module | None, name: str, parameter: torch.Tensor, norm: float | None
    ) -> None:
        """`parameter`, called `name` in `owner`, has its gradient of this backward in `.grad`.

        `norm` is the gradient's 2-norm, infinite or NaN if an element is (or if the sum of squares
        overflows), None for what cannot be looked at or is gone already. `owner` is None outside
        of any module.
        """

    def on_late_gradient(self) -> None:
        """A parameter has its gradient, which will be told of at the end of the pass."""

    def on_backward_end(self, results: Sequence[torch.Tensor | None]) -> None:
        """The backward pass is over; `results` is what `torch.autograd.grad` returns, else ()."""

    def on_backward_failed(self) -> None:
        """The backward pass ended with an exception."""

    # From `updates`: optimizer steps

    def on_before_update(self, optimizer: Any) -> None:
        """`optimizer.step()` is about to change the parameters."""

    def on_after_update(self, optimizer: Any) -> None:
        """`optimizer.step()` has changed the parameters."""

    def is_risky(self, optimizer: Any) -> bool:
        """Whether the step that it is about to make should be recorded, operation by operation."""
        return False

    @property
    def clips_bad_gradient(self) -> bool:
        """Whether the clipping that is about to run should be recorded."""
        return False

    # From `taps`: what adapters say

    def on_clipping(self, parameters: Sequence[torch.Tensor]) -> None:
        """Gradients are about to be clipped."""

    def on_clipped(self, parameters: Sequence[torch.Tensor], total_norm: float) -> None:
        """Gradients were clipped; `total_norm` is their 2-norm before that, unscaled."""

    def on_scale(self, value: float) -> None:
        """The gradient scaler has set its scale."""

    def on_attention(self, call: Call, attention: Attention) -> None:
        """The module of `call` computed attention."""


def hearing(listeners: Iterable[Any], event: str) -> tuple[Any, ...]:
    """Those of `listeners` that have something to do at `event`."""
    nothing = getattr(Watch, event)
    return tuple(
        listener
        for listener in listeners
        if getattr(type(listener), event, nothing) is not nothing
        and event not in getattr(listener, "deaf_to", ())
    )
