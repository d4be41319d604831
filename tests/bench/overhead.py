"""What a training step costs more: under the debugger, and with a watch armed.

Each group is measured in rounds; in a round every variant runs one step, beginning with another
one each time. A variant's step is compared with the base's step of the same round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tests.bench.fleet import Fleet, Sample, Worker
from tests.bench.rounds import rounds, taking_turns
from tests.bench.spread import Spread, paired_ratio, spread

#: Those of `models`, which this process does not import: it has no torch.
MODEL_NAMES = ("GPT-2", "ResNet")
#: Without a target: its step takes less time than its hooks' Python.
TINY = "MLP"

#: What is armed under the debugger: the name, the conditions, and the share of a step that its
#: hooks may take. None of them ever fires.
NONFINITE = ("nonfinite()",)
FORWARD = ('nonfinite(phase="input") or nonfinite(phase="forward")',)
GRAD_NORM = ("grad_norm() > 1e30",)
ENTROPY = ('entropy_shift("*") > 1e30',)
EVERYTHING = (
    *NONFINITE,
    *GRAD_NORM,
    *ENTROPY,
    'grad_norm("*") > 1e30',
    'absmax("*") > 1e30',
    'zero_fraction("*") > 0.999',
    "update_ratio() > 1e30",
    "loss > 1e30",
    "memory_growth() > 1e30",
)
ARMED: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("NaN/Inf, forward only", FORWARD, 0.03),
    ("NaN/Inf in all phases, as on F5", NONFINITE, 0.05),
    ("global gradient norm", GRAD_NORM, 0.015),
    ("attention entropy shift, sampled", ENTROPY, 0.06),
    ("everything", EVERYTHING, 0.10),
)


@dataclass(frozen=True)
class Overhead:
    """One variant's cost. `share` is what hooks took of the step, measured inside it."""

    model: str
    group: str
    what: str
    ratio: Spread
    step_ms: float
    rounds: int
    share: Spread | None = None
    plumbing_share: float | None = None
    hook_runs: int | None = None
    is_base: bool = False
    #: The share of a step that its hooks may take.
    target: float | None = None

    @property
    def met(self) -> bool | None:
        if self.share is None or self.target is None:
            return None
        return self.share.median <= self.target


@dataclass(frozen=True)
class _Variant:
    what: str
    worker: Worker
    watch: str = "none"
    armed: tuple[str, ...] = ()
    account: bool = False
    target: float | None = None

    def run(self, model: str, settle: bool) -> Sample:
        self.worker.arm(self.armed)
        return self.worker.run(model, self.watch, settle=settle, account=self.account)


@dataclass(frozen=True)
class Group:
    """Variants that take turns. The first is the base; an accounted one adds to its namesake."""

    name: str
    seconds: float
    variants: Callable[[Fleet], Sequence[_Variant]] = field(repr=False)
    #: Whether watches are switched on and off in it, so that each step needs one before it.
    settles: bool = True
    #: Further models, beside those that every group is measured on.
    also: tuple[str, ...] = ()


def _nothing_armed(fleet: Fleet) -> Sequence[_Variant]:
    return (
        _Variant("debugpy", fleet.stock),
        _Variant("debugpy, another process", fleet.stock_again),
        _Variant("tensorpoint, nothing armed", fleet.ours),
        _Variant("no debugger", fleet.bare),
    )


def _watches(fleet: Fleet) -> Sequence[_Variant]:
    worker = fleet.bare
    return (
        _Variant("plain", worker),
        _Variant("plain again", worker),
        _Variant(NAN_INF, worker, "nonfinite", target=0.05),
        _Variant(NAN_INF, worker, "nonfinite", account=True, target=0.05),
        _Variant("tensorpoint a layer breakpoint", worker, "layer_breakpoint", target=0.05),
        _Variant(
            "tensorpoint a layer breakpoint",
            worker,
            "layer_breakpoint",
            account=True,
            target=0.05,
        ),
        _Variant("tensorpoint recording facts", worker, "recording", target=0.04),
        _Variant("tensorpoint recording facts", worker, "recording", account=True, target=0.04),
        _Variant("tensorpoint data breakpoint", worker, "data"),
        _Variant('tensorpoint data breakpoint, precision "op"', worker, "data_op"),
        _Variant("naive isnan().any() hooks", worker, "naive"),
        _Variant("set_detect_anomaly(True)", worker, "detect_anomaly"),
        _Variant("DebugUnderflowOverflow", worker, "DebugUnderflowOverflow"),
        _Variant("isfinite() on each operation", worker, "isfinite_mode"),
        _Variant("DebugMode", worker, "DebugMode"),
    )


def _in_session(fleet: Fleet) -> Sequence[_Variant]:
    worker = fleet.ours
    return (
        _Variant("nothing armed", worker),
        _Variant("nothing armed, again", worker),
        *(
            _Variant(name, worker, armed=conditions, account=account, target=target)
            for name, conditions, target in ARMED
            for account in (False, True)
        ),
    )


NAN_INF = "tensorpoint NaN/Inf"
WATCHES = "A watch armed, no debugger: all variants in one process"
GROUPS = (
    Group("Nothing armed: under tensorpoint beside under plain debugpy", 26, _nothing_armed, False),
    Group(WATCHES, 72, _watches),
    Group(
        "Armed under the debugger: switched on and off in one session",
        60,
        _in_session,
        also=(TINY,),
    ),
)


def measure(fleet: Fleet, group: Group, model: str, effort: float, least: int) -> list[Overhead]:
    """Measure one group on one model, for `effort` times the group's seconds."""
    variants = group.variants(fleet)
    for variant in {(v.worker, v.watch, v.armed): v for v in variants}.values():
        variant.run(model, group.settles)  # the first step with a watch also learns and allocates
    samples: dict[_Variant, list[Sample]] = {variant: [] for variant in variants}
    for number in rounds(group.seconds * effort, least, most=60):
        for variant in taking_turns(variants, number):
            samples[variant].append(variant.run(model, group.settles))
    base = [sample.step for sample in samples[variants[0]]]
    accounts = {variant.what: samples[variant] for variant in variants if variant.account}
    rows = [
        _row(group, model, variant, samples[variant], base, accounts.get(variant.what))
        for variant in variants
        if not variant.account
    ]
    return [replace(rows[0], is_base=True), *rows[1:]]


def _row(
    group: Group,
    model: str,
    variant: _Variant,
    samples: Sequence[Sample],
    base: Sequence[float],
    account: Sequence[Sample] | None,
) -> Overhead:
    steps = [sample.step for sample in samples]
    row = Overhead(
        model=model,
        group=group.name,
        what=variant.what,
        target=None if model == TINY else variant.target,
        ratio=paired_ratio(steps, base),
        step_ms=spread(steps).median / 1e6,
        rounds=len(steps),
    )
    if account is None:
        return row
    return replace(
        row,
        share=spread([sample.share for sample in account]),
        plumbing_share=spread([sample.plumbing / sample.step for sample in account]).median,
        hook_runs=account[0].runs,
    )
