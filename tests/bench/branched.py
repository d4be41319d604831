"""Branches on sizes: what it costs to see the other side of each, and which faults are found.

A `forward` has N branches on sizes of its own, none of which a probe enters; every second one has a
fault on its other side. The file is traced in a fork, with Z3 in the same process, so that the
memory is that of both. The naive way, for N = 16, is 65,536 paths and 7,320 MB with a solver kept
for each (a published figure, not measured here).
"""

from __future__ import annotations

import gc
import multiprocessing
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NUMBERS = (8, 12, 16, 20)
#: For 16 branches.
TARGET_S, TARGET_MIB = 1.0, 50.0

_HEAD = """\
import torch
import torch.nn as nn


class Net(nn.Module):
    # tensorpoint: {inputs}
    def __init__(self):
        super().__init__()
        self.right = nn.Linear(8, 8)
        self.wrong = nn.Linear(9, 8)

    def forward(self, {names}):
"""
_BRANCH = """\
        if {condition}:
            x{i} = self.{layer}(x{i})
"""


@dataclass(frozen=True)
class Branched:
    """One number of branches."""

    branches: int
    planted: int
    found: int
    #: Runs beyond the probes; paths there are 2^branches.
    runs: int
    seconds: float
    #: Of the processor, and of these in the solver.
    cpu_seconds: float
    solver_seconds: float
    mib: float

    @property
    def met(self) -> bool | None:
        if self.branches != 16:
            return None
        # The tracer never waits: on an idle core its seconds are those of the processor.
        fast = self.cpu_seconds <= TARGET_S
        return self.found == self.planted and fast and self.mib <= TARGET_MIB


def program(branches: int) -> str:
    """The file; every second fault is behind an equation, where no search by sizes would get."""
    names = [f"x{i}" for i in range(branches)]
    text = _HEAD.format(
        inputs=", ".join(f"{name}: f32[D{i}, 8]" for i, name in enumerate(names)),
        names=", ".join(names),
    )
    for i in range(branches):
        size = f"x{i}.shape[0]"
        condition = f"{size} == {1500 + i}" if i % 4 == 0 else f"{size} > {5000 + i}"
        text += _BRANCH.format(condition=condition, i=i, layer="right" if i % 2 else "wrong")
    return f"{text}        return {', '.join(names)}\n"


def measure(number: int) -> Branched:
    """One row, in a fork of its own."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=lambda: theirs.send(_measured(number)))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


def _measured(branches: int) -> Branched:
    import torch

    from tensorpoint.shapes.branches import sizes_for
    from tensorpoint.shapes.tracing import flips, main
    from tensorpoint.wire.codec import convert
    from tensorpoint.wire.shapes import Question, ShapeRequest

    torch.set_num_threads(1)
    gc.freeze()  # as in a fork of the zygote
    solving = 0.0

    def ask(question: Any) -> Any:
        nonlocal solving
        began = time.process_time()
        answers = sizes_for(convert(question, Question))
        solving += time.process_time() - began
        return answers

    spent: dict[str, float] = {}
    original = flips.Flips.faults

    def faults(self: Any, symbolic: Any) -> Any:
        memory, began, used = _peak(), time.perf_counter(), time.process_time()
        found = [*original(self, symbolic)]
        spent.update(
            runs=self.runs,
            seconds=time.perf_counter() - began,
            cpu=time.process_time() - used,
            solver=solving,
            mib=_peak() - memory,
        )
        return found

    flips.Flips.faults = faults
    with tempfile.TemporaryDirectory() as folder:
        for number in (1, branches):  # the first imports what is imported at first use
            path, text, solving = Path(folder, f"net{number}.py"), program(number), 0.0
            table = main.table_of(ShapeRequest(str(path), text), ask)
    lines = text.split("\n")
    planted = {n for n, line in enumerate(lines, 1) if "self.wrong(" in line}
    found = {each.span.line for each in table.diagnostics}
    return Branched(
        branches,
        len(planted),
        len(found & planted) if found <= planted else -1,
        int(spent["runs"]),
        spent["seconds"],
        spent["cpu"],
        spent["solver"],
        spent["mib"],
    )


def _peak() -> float:
    """MiB of this process at their most."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / (1 << 20)
