"""What the shapes of a table are compared with: the same code, run with real tensors.

The module that was traced is filled with numbers and called at sizes that no probe had; the
rewritten code tells the values of the same places. A shape is right if every value that it had
there is one that is shown.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tensorpoint.shapes.tracing.expressions import value_of
from tensorpoint.shapes.tracing.inputs import Input, Sizes, make
from tensorpoint.shapes.tracing.modes import Assumptions, OnMeta
from tensorpoint.shapes.tracing.probing import Probed
from tensorpoint.shapes.tracing.recorder import Observation
from tensorpoint.shapes.tracing.rewriting import Site
from tensorpoint.shapes.tracing.snapshots import form_of, has_tensor, sizes_of
from tensorpoint.shapes.tracing.source import FileModule

#: Puts numbers into an input of this name.
Fill = Callable[[str, torch.Tensor], None]


@dataclass
class RealRun:
    """One call with real tensors; `error` says why there is nothing to compare with."""

    sizes: Sizes
    observations: list[Observation] = field(default_factory=list[Observation])
    error: str = ""


@dataclass
class Comparison:
    """Places with a tensor in the real runs: right, wrong, or without a shape in the table."""

    right: set[int] = field(default_factory=set[int])
    wrong: dict[int, str] = field(default_factory=dict[int, str])
    unfit: set[int] = field(default_factory=set[int])

    @property
    def places(self) -> int:
        return len(self.right) + len(self.wrong) + len(self.unfit)


def filled(module: Any) -> Any:
    """A real copy of a module on the meta device."""
    memo = {id(value): value.detach() for value in _kept_by(module)}
    real = copy.deepcopy(module, memo).to_empty(device="cpu").eval()
    for tensor in [*real.parameters(), *real.buffers()]:
        _fill(tensor)
    for each in real.modules():
        for name, value in vars(each).items():
            if isinstance(value, torch.Tensor) and value.is_meta:
                vars(each)[name] = _fill(torch.empty_like(value, device="cpu"))
    return real


def _kept_by(module: Any) -> Iterator[torch.Tensor]:
    """What a forward has computed and left in its module: that can't be copied."""
    for each in module.modules():
        for value in tree_leaves(vars(each)):
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                yield value


def _fill(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_complex() or tensor.is_floating_point():
        tensor.data.normal_(0, 0.02)
    else:
        tensor.data.zero_()
    return tensor


def ids_and_masks(name: str, value: torch.Tensor) -> None:
    """Token ids, and masks that mask something: no short way through them."""
    if "mask" in name:
        value.fill_(1)[0, :2] = 0
    else:
        value.copy_(torch.full_like(value, 0).random_(5, 90))


def numbers(lowest: int, highest: int) -> Fill:
    """Integers of this range, and any floats."""

    def fill(_: str, value: torch.Tensor) -> None:
        if value.is_floating_point():
            value.uniform_(0, 1)
        else:
            value.copy_(torch.randint(lowest, highest + 1, tuple(value.shape)))

    return fill


def real_run(
    file: FileModule, module: Any, inputs: tuple[Input, ...], sizes: Sizes, fill: Fill
) -> RealRun:
    """Call a real module at these sizes."""
    torch.manual_seed(0)
    random.seed(0)
    positional, keywords = make(inputs, sizes)
    named = [*zip([i.name for i in inputs if not i.keyword], positional), *keywords.items()]
    for name, value in named:
        for tensor in _tensors(value):
            fill(name, tensor)
    file.recorder.take()
    file.recorder.on = True
    try:
        # What the file moves to another device stays here.
        with torch.no_grad(), OnMeta(Assumptions(""), torch.device("cpu")):
            module(*positional, **keywords)
    except Exception as error:
        return RealRun(sizes, error=f"{type(error).__name__}: {error}"[:160])
    finally:
        file.recorder.on = False
    return RealRun(sizes, file.recorder.take())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def compare(probed: Probed, runs: Sequence[RealRun], sites: Sequence[Site]) -> Comparison:
    """Each place that had a tensor in one of the runs."""
    result = Comparison()
    reached = {o.site for run in runs for o in run.observations if has_tensor(o.snapshot)}
    for site in reached:
        seen = probed.seen.get(site)
        if not seen:
            result.unfit.add(site)
            continue
        for run in runs:
            try:
                expected = {
                    (form_of(s.snapshot), tuple(value_of(d, run.sizes) for d in s.dims))
                    for s in seen
                }
            except NameError:  # a number that values decide about
                continue
            for each in run.observations:
                value = (form_of(each.snapshot), sizes_of(each.snapshot))
                if each.site == site and value not in expected:
                    shown = [dims for _, dims in expected]
                    text = f"{sites[site].span.line} {sites[site].name}: {value[1]} not in {shown}"
                    result.wrong[site] = text
        if site not in result.wrong:
            result.right.add(site)
    return result
