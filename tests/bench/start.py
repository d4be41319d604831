"""How long an F5 takes: from starting the adapter to the stop in a layer of the user's file.

The clock includes an edit of that file just before, the start of the adapter by its usual command,
and the file's imports: torch and transformers' Llama. Stock debugpy and ours without the resident
process import those each time; with it they are in the zygote, after a first session has told what
the program imports.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.bench.latency import STOCK_ADAPTER, hang_up
from tests.protocol.dap import SERVER, Message, Session, eventually, line_of
from tests.resident.hosts import Host, found_by_all, running_host

TARGET_S = 0.5
_PROGRAM = """\
import torch
from transformers import LlamaConfig, LlamaForCausalLM


class Head(torch.nn.Module):
    def forward(self, x):
        return x * {number}  # stop here


sizes = dict(hidden_size=32, intermediate_size=64, vocab_size=100, num_hidden_layers=2)
model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))
Head()(model(torch.tensor([[1, 2, 3]])).logits)
"""


@dataclass(frozen=True)
class Start:
    """Seconds until the stop."""

    what: str
    median: float
    least: float
    most: float
    rounds: int


@dataclass(frozen=True)
class Starts:
    """The three ways, measured in turns."""

    resident: Start
    cold: Start
    stock: Start
    #: MiB of the zygote that has torch, its share of what is shared.
    zygote_mib: float

    @property
    def met(self) -> bool:
        return self.resident.median <= TARGET_S


def measure(rounds: int) -> Starts:
    """Measure `rounds` starts of each, the resident one three times as often."""
    seconds: dict[str, list[float]] = {"resident": [], "cold": [], "stock": []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        host = stack.enter_context(running_host())
        stack.enter_context(found_by_all(host))
        learn(host, folder / "train.py")
        for number in range(rounds):
            for _ in range(3):
                seconds["resident"].append(_start(folder / "train.py", number, None, True))
            seconds["cold"].append(_start(folder / "train.py", number, None, False))
            seconds["stock"].append(_start(folder / "train.py", number, STOCK_ADAPTER, False))
        memory = max(zygote.memory_mib or 0 for zygote in host.status().zygotes)
    resident, cold, stock = (_spread(what, seconds[what]) for what in ("resident", "cold", "stock"))
    return Starts(resident, cold, stock, memory)


def learn(host: Host, program: Path) -> None:
    """Have the host know what the program imports, and a zygote with it ready."""
    host.acquire(PYTHONPATH=str(SERVER))
    _start(program, 0, None, True, seconds=3)
    eventually(
        lambda: (
            all(zygote.state == "ready" for zygote in host.status().zygotes)
            and max(zygote.modules for zygote in host.status().zygotes) > 2000
        ),
        "a zygote with all of it",
    )


def _start(
    program: Path, number: int, adapter: list[str] | None, resident: bool, seconds: float = 0
) -> float:
    began = time.perf_counter()
    program.write_text(_PROGRAM.format(number=number), encoding="utf-8")
    places = {str(program): [line_of(program, "stop here")]}
    ours: Message = {} if adapter is not None else {"resident": resident}
    session = Session(adapter=adapter)
    try:
        session.launch(program, filters=[], breakpoints=places, python=[sys.executable], **ours)
        stopped = session.stopped()
        passed = time.perf_counter() - began
        assert session.top(stopped) == (program.name, line_of(program, "stop here"))
        time.sleep(seconds)
    finally:
        hang_up(session)
    return passed


def _spread(what: str, seconds: list[float]) -> Start:
    return Start(what, statistics.median(seconds), min(seconds), max(seconds), len(seconds))
