"""One run of a call at given sizes: what it told, what came out, or how it failed."""

from __future__ import annotations

import contextlib
import math
import random
import time
from dataclasses import dataclass, field
from typing import Any

from ...wire.shapes import Span
from .casting import NO_CASTING, Castings, under
from .graph import Drawn
from .inputs import Input, Sizes, make
from .memo import Memo, Modules
from .modes import Assumptions, without_data
from .plugins import Plugins, notes_of
from .recorder import Observation, Recorder
from .snapshots import Snapshot, snap


@dataclass
class Target:
    """What is called: a module of the file, with inputs of named sizes."""

    qualname: str
    constructor: str
    module: Any
    inputs: tuple[Input, ...]
    recorder: Recorder
    #: What the symbols stand for in a call of the program's that the inputs were taken from.
    example: Sizes = field(default_factory=dict[str, int])
    #: What was assumed so that it runs: `H == 28`.
    assumptions: list[str] = field(default_factory=list[str])
    #: The autocasts that it is called under, None for none, and on which machine.
    castings: Castings = NO_CASTING
    modules: Modules = field(default_factory=Modules)
    plugins: Plugins = field(default_factory=Plugins)

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for each in self.inputs for name in each.symbols()))


@dataclass
class Run:
    """What came of it."""

    sizes: Sizes
    observations: list[Observation]
    output: Snapshot | None = None
    error: BaseException | None = None
    assumptions: Assumptions | None = None
    flops: int = 0
    #: What plugins say of places, columns in bytes.
    notes: dict[Span, tuple[str, ...]] = field(default_factory=dict[Span, tuple[str, ...]])
    #: Which arguments hang on the machine, of the autocasts that were entered.
    hanging: set[str] = field(default_factory=set[str])

    @property
    def all_sizes(self) -> Sizes:
        """With the numbers of elements that values decided about."""
        return {**self.sizes, **(self.assumptions.found if self.assumptions else {})}


def run(
    target: Target,
    sizes: Sizes,
    *,
    truth: bool = True,
    memo: bool = True,
    count: bool = False,
    record: bool = True,
    seconds: float = math.inf,
    casting: int = 0,
) -> Run:
    """Call it on the meta device, recording; given up after some seconds.

    `casting` is the number of one of the target's.
    """
    assumptions = Assumptions(target.recorder.file, truth, time.monotonic() + seconds, dict(sizes))
    recorder = target.recorder
    recorder.take()
    result = Run(sizes, [], assumptions=assumptions)
    random.seed(0)
    counter = recorder if count else None
    drawn = Drawn(recorder.file, target.plugins) if target.plugins else None
    with (
        without_data(assumptions, counter),
        Memo(recorder, target.modules, skips=memo),
        drawn or contextlib.nullcontext(),
        under(*target.castings[casting]) as result.hanging,
    ):
        try:
            positional, keywords = make(target.inputs, sizes)
            recorder.on = record
            result.output = snap(target.module(*positional, **keywords))
        except BaseException as error:  # SystemExit, KeyboardInterrupt: the user's code
            result.error = error
        finally:
            recorder.on = False
    if drawn is not None:
        result.notes = notes_of(drawn.graph)
    result.flops = recorder.flops
    result.observations = recorder.take()
    return result
