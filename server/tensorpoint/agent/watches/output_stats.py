"""absmax and zero_fraction: two statistics of module outputs.

absmax: max |x| over the floating elements of a module's output; exact. One pass gives the 2-norm,
which bounds it from above (max |x| <= ||x||): only where a condition could hold at that bound is
the maximum itself read. Cost: one 2-norm per matching module, as cheap as a sum.

zero_fraction: the share of elements that are exactly 0 (dead units after a ReLU). Estimated from up
to 4,096 elements at a fixed stride; where a condition holds for the estimate, all are counted
before it fires. Cost: 5 to 20 us per matching module; counting all costs 12 sums.

Both are of the first floating tensor of the output. NaN propagates into absmax.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import ref

from ..judge import Judge
from ..modules import Call
from ..rules import Rule
from ..tensors import absmax_of, quick_norm, quick_zero_fraction, tensors_in, zero_fraction_of
from .base import Event, Watch

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

#: The rules that look at a module, and the value up to which none of them is interested.
_Interest = tuple["ref[Module]", tuple[Rule, ...], float]


class _OutputStatistic(Watch, ABC):
    """Looks at the outputs of modules that a rule of its metric is about.

    Few Python frames where nothing is to be told: it runs for every module, and under debugpy on
    Python 3.11 the whole way through the judge takes 60 us.
    """

    metric: ClassVar[str]

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        #: By id of the module.
        self._interests: dict[int, _Interest] = {}
        self._bound: Callable[[Any], float | None]
        #: The output that was measured last, its version then, and what was measured.
        self._last: tuple[ref[torch.Tensor], int, float] | None = None

    def arm(self, rules: Sequence[Rule]) -> None:
        self._interests = {}
        self._last = None
        self._bound = self._quick()
        self._function_modes = sys.modules["torch"]._C._len_torch_function_stack
        self._plain: Any = sys.modules["torch"].Tensor

    def on_exit(self, call: Call, outer: list[Call], output: Any) -> None:
        """Measure the output if a rule looks at this module."""
        module = call.module
        interest = self._interests.get(id(module))
        if interest is None or interest[0]() is not module:
            interest = self._learn(module, outer[0].module if outer else module)
        _, rules, limit = interest
        if not rules:
            return
        if type(output) is not self._plain:
            output = _first_floating(output)
        if output is None or not output.dtype.is_floating_point:
            return
        is_kept = (
            type(output) is self._plain and not self._function_modes() and not output.is_inference()
        )
        last = self._last
        if is_kept and last is not None and last[0]() is output and last[1] == output._version:
            quick = last[2]  # a container returns what its last child did
        else:
            measured = self._bound(output)
            if measured is None:
                return
            quick = measured
            self._last = (ref(output), output._version, quick) if is_kept else None
        if quick <= limit:
            self._spare(call, output)
            for rule in rules:
                if rule.true_at:
                    break
            else:
                return
        self._measure(output, quick, rules, call)

    def _learn(self, module: Module, within: Module) -> _Interest:
        rules = self._judge.bound(self.metric, module, within)
        limit = self._judge.limit(self.metric, rules)
        interest = self._interests[id(module)] = (ref(module), rules, limit)
        return interest

    def _measure(
        self, output: torch.Tensor, quick: float, rules: Sequence[Rule], call: Call
    ) -> None:
        value = self._exact(output, quick, rules, call)
        if value is None:
            return

        def event() -> Event:
            return Event(
                name=self.metric,
                module=call.module,
                entered=call.module,
                headline=f"{self.metric} {value:.6g} in the output of",
                sentences=(),
                value=value,
                values={"inputs": call.args, "keyword_inputs": call.kwargs, "output": output},
            )

        self._judge.measured(self.metric, value, rules, event, module=call.module)

    @abstractmethod
    def _quick(self) -> Callable[[Any], float | None]:
        """What is measured of every output: an upper bound or an estimate."""

    def _spare(self, call: Call, output: torch.Tensor) -> None:
        """The output was found to be of no interest."""

    @abstractmethod
    def _exact(
        self, output: torch.Tensor, quick: float, rules: Sequence[Rule], call: Call
    ) -> float | None:
        """What a rule is told, where the quick one may matter to it."""


class AbsMax(_OutputStatistic):
    """The largest magnitude in a module's output."""

    metric = "absmax"

    def _quick(self) -> Callable[[Any], float | None]:
        return quick_norm()

    def _spare(self, call: Call, output: torch.Tensor) -> None:
        # The norm is finite, so `nonfinite`, which comes after, need not read the output again.
        if type(output) is sys.modules["torch"].Tensor and not output.is_inference():
            call.checked = ref(output), output._version

    def _exact(
        self, output: torch.Tensor, quick: float, rules: Sequence[Rule], call: Call
    ) -> float | None:
        bounds = [rule.false_up_to(self.metric) for rule in rules]
        known = [bound for bound in bounds if bound is not None]
        if len(known) == len(bounds) and isfinite(quick) and quick <= min(known):
            return quick  # an upper bound, and no rule is interested below its own
        return absmax_of(output)


class ZeroFraction(_OutputStatistic):
    """The share of exact zeros in a module's output."""

    metric = "zero_fraction"

    def _quick(self) -> Callable[[Any], float | None]:
        return quick_zero_fraction()

    def _exact(
        self, output: torch.Tensor, quick: float, rules: Sequence[Rule], call: Call
    ) -> float | None:
        if self._judge.would_hold(self.metric, quick, rules, module=call.module):
            return zero_fraction_of(output)
        return quick


def _first_floating(output: object) -> torch.Tensor | None:
    tensors = (tensor for _, tensor in tensors_in(output, ""))
    return next((tensor for tensor in tensors if tensor.is_floating_point()), None)
