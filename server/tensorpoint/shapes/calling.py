"""A trace as a job of the user's interpreter."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

from ..resident.jobs import Job, Outcome, run_job
from ..resident.messages import Environment
from ..wire.codec import convert
from ..wire.shapes import Question, ShapeRequest, ShapeTable

_ENTRY = str(Path(__file__).parent / "entry")
#: A first import of torch and transformers on a busy machine takes 20 s.
SECONDS = 60.0
MEMORY_MIB = 4096
#: Meta kernels import it at their first call.
_COMPILER = ("torch._dynamo", "torch.fx.experimental.symbolic_shapes")


async def trace(
    request: ShapeRequest,
    environment: Environment | None = None,
    *,
    seconds: float = SECONDS,
    memory_mib: int = MEMORY_MIB,
) -> Outcome[ShapeTable]:
    """The table of a file. What fails in the tracer is an outcome that says so."""
    job = Job(
        "tensorpoint_shapes:trace",
        dataclasses.asdict(request),
        (_ENTRY,),
        seconds=seconds,
        memory_mib=memory_mib,
    )
    outcome = await run_job(environment or environment_of(), job, ShapeTable, _answer)
    if outcome.value is not None and outcome.value.conditions:
        from .branches import with_branches  # z3 takes 0.2 s

        table = await asyncio.to_thread(with_branches, outcome.value)
        return dataclasses.replace(outcome, value=table)
    return outcome


def _answer(question: Any) -> list[dict[str, int] | None]:
    """What the tracer asks while it works."""
    from .branches import sizes_for

    return sizes_for(convert(question, Question))


def environment_of(python: str | None = None) -> Environment:
    """The environment of an interpreter (this one), with our own variables."""
    return Environment(
        (os.path.abspath(python or sys.executable),),
        dict(os.environ),
        preload=(*_COMPILER, f"{_ENTRY}/tensorpoint_shapes:tracer"),
    )
