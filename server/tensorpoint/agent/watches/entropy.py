"""entropy, entropy_shift: how concentrated each head's attention is, and sudden changes of that.

Formula: `attention` has it, with its source. 0 is one key that takes all the weight (a collapsed
head), 1 is all visible keys alike. The shift is |H - mean| / sd: a head may collapse or lose its
focus. Mean and sd are exponentially weighted, by the formulas of T. Finch, "Incremental calculation
of weighted mean and variance" (Cambridge, 2009). There are two running means, with 0.05 and with
0.3 for the newest step (evenly over the first steps), and the nearer one counts; between them the
shift is 0. So a head that forms its pattern over many steps is no news, whether it began long ago
or just now. sd is around the slow one and at least 0.0125, so that 4 of them are never less than a
change of 0.05.

Estimate, then exact: each step looks at 16 queries from four rows of the batch. Only where a
condition could be true with the estimate, or was true before, is the whole batch looked at, and
only that value can turn a condition true. Running means and variance are those of the estimate.
`make bench` counts false stops and delays with seeds that this was not tuned on.

What is compared with what: a head has a running mean for training and one for evaluation, for
prompts and for single tokens with a cache, and for each power of two of the number of keys, since
even normalised entropy depends on it. After 30 steps of a kind its shift is known. An attention
that is computed several times in one call of the model (a shared layer) is told apart by its turn.
Not counted: blocks that checkpointing runs again in backward, and the console.

Cost: the sample of a layer is 15 small operations; with both watches on, 1.6 % of a training step
of a GPT-2 of 6 layers, under debugpy 2.9 %. The exact value is about one more call of the
attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakKeyDictionary

from ..attention import Attention, Part
from ..judge import Judge
from ..modules import Call, Names
from ..rules import Rule
from .base import Event, Watch

if TYPE_CHECKING:
    from torch.nn import Module

#: The weight of the newest step in the two running means; the first is that of the variance too.
_SLOW, _FAST = 0.05, 0.3
#: Steps until there is a mean to compare with.
_WARM_UP = 30
_LEAST_DEVIATION = 0.0125
#: The exact value is asked for if a condition is true for the estimate stretched by this.
_STRETCH = 1.25


class Entropy(Watch):
    """Normalised entropy of each attention head."""

    metric: ClassVar[str] = "entropy"

    def __init__(self, names: Names, judge: Judge) -> None:
        self._judge = judge
        #: The heads for which a condition was true at the last look: these are always exact.
        self._true: WeakKeyDictionary[Module, set[Part]] = WeakKeyDictionary()

    def arm(self, rules: Sequence[Rule]) -> None:
        self._true = WeakKeyDictionary()

    def on_attention(self, call: Call, attention: Attention) -> None:
        """Measure the heads of an attention that `call`'s module has computed."""
        module, judge = call.module, self._judge
        rules = judge.bound(self.metric, module)
        if not rules:
            return
        true = self._true.setdefault(module, set())
        for head, estimate in enumerate(attention.sampled):
            part, value = attention.part(head), estimate
            if part in true or (
                math.isfinite(estimate)
                and judge.would_hold(self.metric, estimate, rules, module=module, part=part)
            ):
                value = _exact(attention, head)
            if not math.isfinite(value):
                continue
            holds = value is not estimate and judge.would_hold(
                self.metric, value, rules, module=module, part=part
            )
            (true.add if holds else true.discard)(part)
            judge.measured(
                self.metric,
                value,
                rules,
                _concentration(module, attention, head, value),
                module=module,
                part=part,
            )


class EntropyShift(Watch):
    """How far the entropy of each attention head is from its running mean."""

    metric: ClassVar[str] = "entropy_shift"

    def __init__(self, names: Names, judge: Judge) -> None:
        self._judge = judge
        self._kinds: WeakKeyDictionary[Module, dict[tuple[object, ...], _Heads]] = (
            WeakKeyDictionary()
        )

    def arm(self, rules: Sequence[Rule]) -> None:
        if not rules:
            self._kinds = WeakKeyDictionary()

    def on_attention(self, call: Call, attention: Attention) -> None:
        """Compare the heads of an attention that `call`'s module has computed, and go along."""
        module = call.module
        rules = self._judge.bound(self.metric, module)
        sampled = attention.sampled if rules else ()
        if not sampled or not all(map(math.isfinite, sampled)):
            return
        kinds = self._kinds.setdefault(module, {})
        kind = (attention.ordinal, module.training, *_shape(attention), len(sampled))
        running = kinds.get(kind)
        if running is None:
            running = kinds[kind] = _Heads(len(sampled))
        if running.steps >= _WARM_UP:
            for head, estimate in enumerate(sampled):
                self._compare(rules, module, attention, head, estimate, running)
        running.go_along(sampled)

    def _compare(
        self,
        rules: Sequence[Rule],
        module: Module,
        attention: Attention,
        head: int,
        estimate: float,
        running: _Heads,
    ) -> None:
        judge, part, value = self._judge, attention.part(head), estimate
        shift = running.shift(head, estimate)
        if judge.would_hold(self.metric, abs(shift) * _STRETCH, rules, module=module, part=part):
            value = _exact(attention, head)
            shift = running.shift(head, value)
        if math.isfinite(shift):
            mean = running.baseline(head, value)
            seen = _Shift(value, shift, mean, running.deviation(head), running.steps)
            judge.measured(
                self.metric,
                abs(shift),
                rules,
                _change(module, attention, head, seen),
                module=module,
                part=part,
            )


class _Heads:
    """Running means and variances of the estimates of a module's heads."""

    def __init__(self, heads: int) -> None:
        self.steps = 0
        self._slow = [0.0] * heads
        self._fast = [0.0] * heads
        self._variances = [0.0] * heads

    def deviation(self, head: int) -> float:
        return max(math.sqrt(self._variances[head]), _LEAST_DEVIATION)

    def baseline(self, head: int, value: float) -> float:
        """What `value` is compared with: the nearer of the running means, itself between them."""
        low, high = sorted((self._slow[head], self._fast[head]))
        return min(max(value, low), high)

    def shift(self, head: int, value: float) -> float:
        """How far `value` is outside of what the running means span, in standard deviations."""
        return (value - self.baseline(head, value)) / self.deviation(head)

    def go_along(self, values: Sequence[float]) -> None:
        self.steps += 1
        slow, fast = max(_SLOW, 1 / self.steps), max(_FAST, 1 / self.steps)
        for head, value in enumerate(values):
            change = value - self._slow[head]
            self._slow[head] += slow * change
            self._fast[head] += fast * (value - self._fast[head])
            variance = self._variances[head]
            self._variances[head] = (1 - slow) * (variance + slow * change * change)


@dataclass(frozen=True)
class _Shift:
    value: float
    shift: float
    mean: float
    deviation: float
    steps: int


def _exact(attention: Attention, head: int) -> float:
    return attention.exact[head] if attention.exact else math.nan


def _shape(attention: Attention) -> tuple[bool, int]:
    """What the entropy is comparable within: single tokens or not, about as many keys."""
    return attention.queries == 1, attention.keys.bit_length()


def _concentration(
    module: Module, attention: Attention, head: int, value: float
) -> Callable[[], Event]:
    def event() -> Event:
        return Event(
            name="entropy",
            module=module,
            entered=module,
            headline=f"attention entropy {value:.3g} of head {head} in",
            sentences=(
                "Normalised: 0 is one key that takes all the weight, 1 is all visible keys alike.",
                _all_heads(attention),
            ),
            value=value,
            values=attention.tensors(),
        )

    return event


def _change(module: Module, attention: Attention, head: int, seen: _Shift) -> Callable[[], Event]:
    def event() -> Event:
        moved = "fell" if seen.shift < 0 else "rose"
        mode = "training" if module.training else "evaluation"
        return Event(
            name="entropy_shift",
            module=module,
            entered=module,
            headline=f"attention entropy of head {head} {moved} to {seen.value:.3g} in",
            sentences=(
                f"Its running mean is {seen.mean:.3g} with a standard deviation of "
                f"{seen.deviation:.2g}, over {seen.steps} steps in {mode} mode: a shift of "
                f"{seen.shift:+.1f} standard deviations.",
                _all_heads(attention),
            ),
            value=abs(seen.shift),
            values=attention.tensors(),
        )

    return event


def _all_heads(attention: Attention) -> str:
    heads = ", ".join(f"{value:.3g}" for value in attention.exact)
    return (
        f"All heads, of {attention.queries} queries and {attention.keys} keys a batch row: {heads}."
    )
