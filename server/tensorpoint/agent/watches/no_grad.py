"""no_grad: parameters that require a gradient and got none in a step.

A parameter of an optimizer is without a gradient if, when the optimizer steps, its `.grad` is None,
or is the same as after the step before: no backward pass has added to it. (After
`zero_grad(set_to_none=False)` such a gradient is all zeros, and has been written once less often
than others.) In programs without a `torch.optim.Optimizer` what counts is what backward passes left
until a root is called again, for models that got any. True for the module that has the parameter;
one stop for all of a step.

Cost: for each module a note that it ran and whether its output requires a gradient, for each
parameter a look at its `.grad` before and after the step. On a GPT-2 with 12 layers (155 calls, 148
parameters) 2.5 ms a step, taken on two busy cores.

Why there is none is worked out where it is told, from these notes, from which other parameters got
one, and from the source: the notes say whether the module ran and up to where the graph reached;
which line cuts it is looked for in the forwards around.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar

from ...conditions import Input, Sample
from .. import debugger_files
from ..frames import is_internal, outwards
from ..judge import Judge
from ..modules import Call, Names
from ..rules import Rule
from ..tensors import norms_of, tensors_in, unseen, version_of
from .base import Event, Watch
from .no_grad_why import (
    GRAD_MODE,
    IN_GRAPH,
    NO_FLOAT,
    NONE,
    RAN,
    STALE,
    ZEROED,
    Missing,
    Reasons,
    Step,
)

if TYPE_CHECKING:
    import torch

_MOST_NAMES = 4
_MOST_GROUPS = 8
_MOST_ROWS = 40
_MOST_FRAMES = 3


@dataclass
class _Happened:
    """What happened in some time: what ran, by id of the module, and how many backward passes."""

    seen: dict[int, int] = field(default_factory=dict)
    backwards: int = 0

    def add(self, later: _Happened) -> None:
        for key, flags in later.seen.items():
            self.seen[key] = self.seen.get(key, 0) | flags
        self.backwards += later.backwards


class NoGrad(Watch):
    """Parameters without a gradient."""

    metric: ClassVar[str] = "no_grad"

    def __init__(self, names: Names, judge: Judge) -> None:
        self._names = names
        self._judge = judge
        self._rules: tuple[Rule, ...] = ()
        self._reset()

    def _reset(self) -> None:
        #: Since the last step of any optimizer.
        self._now = _Happened()
        #: Between the last step of each and the last of any: in a GAN the generator runs before the
        #: critic's optimizer steps, and its own steps after that.
        self._before: weakref.WeakKeyDictionary[Any, _Happened] = weakref.WeakKeyDictionary()
        #: The same for one that has not stepped yet: a round of the loop.
        self._round = _Happened()
        #: By id of a parameter: its gradient after the last step, and the version of that.
        self._left: dict[int, tuple[weakref.ref[Any], int | None]] = {}
        #: Without an optimizer: ids of the parameters that have got a gradient in this step.
        self._given: set[int] = set()
        #: Whether the program has an optimizer; None until that was asked.
        self._has_optimizer: bool | None = None
        self._last: Step | None = None
        self._wants_false = False

    def arm(self, rules: Sequence[Rule]) -> None:
        if bool(rules) != bool(self._rules):
            self._reset()
        self._rules = tuple(rules)
        self._wants_false = any(rule.holds(self._if_false) is not False for rule in rules)
        self._is_grad_enabled = sys.modules["torch"].is_grad_enabled if rules else bool
        self._tensor = sys.modules["torch"].Tensor if rules else object

    def _if_false(self, wanted: Input) -> Sample | None:
        known = not isinstance(wanted, str) and wanted.metric == self.metric
        return Sample(False, None) if known else None

    # What happens ------------------------------------------------------------------------------

    def on_exit(self, call: Call, outer: list[Call], output: Any) -> None:
        """Note that the module ran, and whether the graph reaches its output."""
        flags = RAN | GRAD_MODE if self._is_grad_enabled() else RAN
        if isinstance(output, self._tensor):
            if output.requires_grad:
                flags |= IN_GRAPH
            elif not (output.is_floating_point() or output.is_complex()):
                flags |= NO_FLOAT
        elif any(tensor.requires_grad for _, tensor in tensors_in(output, "")):
            flags |= IN_GRAPH
        key, seen = id(call.module), self._now.seen
        seen[key] = seen.get(key, 0) | flags

    def on_backward_end(self, results: Sequence[torch.Tensor | None]) -> None:
        """A backward pass is over."""
        self._now.backwards += 1
        if not self._is_stepped_by_hand():
            return
        for root in self._names.roots():
            for parameter in root.parameters():
                if parameter.grad is not None:
                    self._given.add(id(parameter))

    def on_root(self, call: Call) -> None:
        """The next step of a program without an optimizer; its gradients may be gone by now."""
        if not self._given:
            return
        given, self._given = self._given, set()
        parameters = {
            id(parameter): parameter
            for root in self._names.roots()
            if any(id(parameter) in given for parameter in root.parameters())
            for parameter in root.parameters()
        }
        how = [(p, NONE) for key, p in parameters.items() if p.requires_grad and key not in given]
        self._look([*parameters.values()], how, "the next forward", None)

    def _is_stepped_by_hand(self) -> bool:
        if self._has_optimizer is None:
            kind = sys.modules["torch.optim"].Optimizer
            self._has_optimizer = any(issubclass(type(item), kind) for item in gc.get_objects())
        return not self._has_optimizer

    def on_before_update(self, optimizer: Any) -> None:
        """Look at the parameters of the optimizer."""
        self._has_optimizer = True
        parameters = _parameters_of(optimizer)
        how = self._without(parameters)
        self._look(parameters, how, f"{type(optimizer).__name__}.step", optimizer)

    def on_after_update(self, optimizer: Any) -> None:
        """Note what gradients are there, to see whether they are news at the next step."""
        self._left = _versions(_parameters_of(optimizer), self._left)

    # Which are missing -------------------------------------------------------------------------

    def _look(
        self, parameters: list[Any], how: list[tuple[Any, str]], title: str, optimizer: Any
    ) -> None:
        happened = self._since_its_last(optimizer)
        owners = _owners(self._names) if how or self._wants_false or self._is_true() else {}
        missing = [self._missing(parameter, kind, owners) for parameter, kind in how]
        self._last = step = Step(
            title,
            missing,
            {id(p) for p in parameters} - {id(item.parameter) for item in missing},
            happened.seen,
            happened.backwards,
            tuple(_callers()) if missing else (),
            sum(parameter.requires_grad for parameter in parameters),
        )
        for module in self._fine(parameters, missing, owners):
            self._measured(False, module, step, optimizer)
        for item in missing:
            self._measured(True, item.owner, step, optimizer)

    def _since_its_last(self, optimizer: Any) -> _Happened:
        """What happened since the optimizer's last step; without one since the last look."""
        now, self._now = self._now, _Happened()
        if optimizer is None:
            return now
        for happened in (self._round, *self._before.values()):
            happened.add(now)
        known = self._before.get(optimizer)
        self._before[optimizer] = _Happened()
        if known is None:
            known = _Happened()
            known.add(self._round)
        else:
            self._round = _Happened()
            self._round.add(known)
        return known

    def _without(self, parameters: list[Any]) -> list[tuple[Any, str]]:
        """The parameters that got no gradient since the last step, and how that shows."""
        found: list[tuple[Any, str]] = []
        written: list[tuple[Any, int]] = []
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None:
                if parameter.requires_grad:
                    found.append((parameter, NONE))
                continue
            known = self._left.get(id(parameter))
            if known is None or known[0]() is not gradient or not parameter.requires_grad:
                continue
            version, before = version_of(gradient), known[1]
            if version is None or before is None:
                continue
            if version == before:
                found.append((parameter, STALE))
            else:
                written.append((parameter, version - before))
        # A gradient that was zeroed, and perhaps clipped, but not added to.
        most = max((times for _, times in written), default=0)
        fewer = [parameter for parameter, times in written if times < most or most == 1]
        norms = norms_of([parameter.grad for parameter in fewer]) if fewer else []
        found += [(p, ZEROED) for p, norm in zip(fewer, norms, strict=True) if norm == 0]
        return found

    def _missing(self, parameter: Any, how: str, owners: dict[int, tuple[Any, str]]) -> Missing:
        owner, name = owners.get(id(parameter), (None, f"(shape {list(parameter.shape)})"))
        path = "" if owner is None else self._names.path(owner, owner)
        return Missing(parameter, owner, name, path, how)

    def _is_true(self) -> bool:
        return any(rule.true_at or not rule.single for rule in self._rules)

    def _fine(
        self, parameters: list[Any], missing: list[Missing], owners: dict[int, tuple[Any, str]]
    ) -> Iterator[Any]:
        """The modules whose parameters all have a gradient, for rules that care."""
        if not owners or not (self._wants_false or self._is_true()):
            return
        bad = {id(item.owner) for item in missing}
        modules = {id(m): m for p in parameters for m, _ in [owners.get(id(p), (None, ""))]}
        for key, module in modules.items():
            if module is not None and key not in bad:
                yield module

    def _measured(self, value: bool, module: Any, step: Step, optimizer: Any) -> None:
        part = None
        if module is not None:
            rules = self._judge.bound(self.metric, module)
        else:  # of no module: it counts for the newest root, or for none
            module, part = self._names.root_of(None), "optimizer"
            rules = tuple(rule for rule in self._rules if rule.looks_at(""))
        if not rules:
            return

        def event() -> Event:
            # Those that are missing in the same step are told of in the same stop.
            for rule in rules:
                if rule.single:
                    rule.true_at.update(
                        (id(other.owner), None)
                        for other in step.missing
                        if other.owner is not None and rule.looks_at(other.path)
                    )
            return self._event(value, None if part else module, step, rules, optimizer)

        self._judge.measured(self.metric, value, rules, event, module=module, part=part)

    # In words ----------------------------------------------------------------------------------

    def _event(
        self, value: bool, module: Any, step: Step, rules: Sequence[Rule], optimizer: Any
    ) -> Event:
        told = [
            item
            for item in step.missing
            if any(rule.looks_at(item.path) for rule in rules) or item.owner is None
        ]
        here = [item.name for item in told if item.owner is module]
        names = " and ".join(here) if len(here) <= 2 else f"{len(here)} parameters"
        if not value:
            headline = "all parameters have a gradient in"
        elif module is None:
            headline = f"no gradient for {len(told)} parameters, among them some of no module"
        elif len(told) > len(here):
            headline = f"no gradient for {len(told)} parameters, among them {names} of"
        else:
            headline = f"no gradient for {names} of"
        return Event(
            name=self.metric,
            module=module,
            entered=None,
            headline=headline,
            sentences=tuple(self._explained(told, step, _MOST_GROUPS)),
            value=len(told),
            values={
                "parameters": {item.full_name: item.parameter for item in told},
                "optimizer": optimizer,
            },
        )

    def _explained(self, told: Sequence[Missing], step: Step, most: int) -> Iterator[str]:
        """A sentence for each reason, with the parameters that have it."""
        groups: dict[str, list[str]] = {}
        reasons = Reasons(self._names, step)
        for item in told:
            groups.setdefault(reasons.why(item), []).append(item.full_name)
        for reason, names in list(groups.items())[:most]:
            listed = ", ".join(names[:_MOST_NAMES])
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            yield f"{listed}{more}: {reason}"
        if len(groups) > most:
            yield f"and {len(groups) - most} more reasons: tp nograd lists all."

    def report(self, glob: str) -> str:
        """What `tp nograd` shows: the newest step's parameters without a gradient, and why."""
        if not self._rules:
            return self._report_now(glob)
        step = self._last
        if step is None:
            return "no optimizer step since no_grad was set: ask again after one"
        told = [item for item in step.missing if _is_meant(item, glob)]
        head = (
            f"at {step.title}: {len(told)} of {step.total} parameters that require a gradient got "
            "none"
        )
        return "\n".join((head, *self._explained(told, step, _MOST_ROWS)))

    def _report_now(self, glob: str) -> str:
        """Without the watch: what the parameters have at the moment."""
        owners = _owners(self._names)
        if not owners:
            return (
                "no module was called since the start, or nothing is watched: "
                'tp on no_grad("*") reports from the next step on'
            )
        missing: list[Missing] = []
        total = 0
        for root in self._names.roots():
            for parameter in root.parameters():
                total += parameter.requires_grad
                if parameter.requires_grad and parameter.grad is None:
                    missing.append(self._missing(parameter, NONE, owners))
        told = [item for item in missing if _is_meant(item, glob)]
        if len(missing) == total:
            return (
                f"none of {total} parameters has a gradient at the moment: no backward pass since "
                'zero_grad. tp on no_grad("*") reports at each optimizer step'
            )
        head = f"at the moment {len(told)} of {total} parameters that require a gradient have none"
        rows = [item.full_name for item in told[:_MOST_ROWS]]
        left_out = [f"... and {len(told) - _MOST_ROWS} more"] if len(told) > _MOST_ROWS else []
        note = 'why is not recorded: tp on no_grad("*")' if told else ""
        return "\n".join((head, *rows, *left_out, *([note] if note else [])))


@unseen
def _versions(
    parameters: list[Any], known: dict[int, tuple[weakref.ref[Any], int | None]]
) -> dict[int, tuple[weakref.ref[Any], int | None]]:
    """The gradients that are there now and how often each was written, added to `known`."""
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            try:
                version = gradient._version
            except RuntimeError:  # an inference tensor
                version = None
            known[id(parameter)] = weakref.ref(gradient), version
    return known


def _is_meant(item: Missing, glob: str) -> bool:
    return fnmatchcase(item.path, glob) or fnmatchcase(item.full_name, glob)


def _parameters_of(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _owners(names: Names) -> dict[int, tuple[Any, str]]:
    """By id of a parameter, its module (of tied ones the first) and its name there."""
    found: dict[int, tuple[Any, str]] = {}
    for root in names.roots():
        for module in root.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    found.setdefault(id(parameter), (module, name))
    return found


def _callers() -> Iterator[CodeType]:
    """The program's functions on the stack, innermost first: those that have the loop."""
    found = 0
    for frame in outwards(sys._getframe(1)):
        if not is_internal(frame) and debugger_files.in_project(frame):
            yield frame.f_code
            found += 1
            if found == _MOST_FRAMES:
                return
