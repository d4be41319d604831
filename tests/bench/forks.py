"""What else the resident process gives: jobs, ranks, memory; and weights that are kept.

Each row has the way with it beside the way without, in turns.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tensorpoint.resident.jobs import Job, run_job
from tensorpoint.resident.messages import Environment
from tensorpoint.wire import pack
from tests.bench.latency import hang_up
from tests.bench.start import learn
from tests.protocol.dap import SERVER, Session, eventually, line_of
from tests.resident.hosts import Host, found_by_all, run, running_host

_RANKS = 8
_IDLE = 4
#: For what takes two minutes where others compute as well: ranks that each import torch.
_LONG_S = 900
_JOB = "import torch\n\n\ndef shape(size):\n    return list(torch.Size([size]))\n"
#: One write: torchrun's ranks are unbuffered.
_RANK = "import os, time, torch\nos.write(1, f'line {time.time()}\\n'.encode())\n"
_DTYPES = ("bfloat16", "float32")
_SLEEP = "import torch, time\nprint('ready', flush=True)\ntime.sleep(600)\n"
_MAKE = """\
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
layers = max(1, int(sys.argv[2]) // 40)  # a layer of 20 million parameters, in bfloat16
sizes = dict(hidden_size=1024, intermediate_size=5120, vocab_size=1000, num_hidden_layers=layers)
config = LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=8)
with torch.device("meta"):
    model = LlamaForCausalLM(config).to(torch.bfloat16)
model = model.to_empty(device="cpu")
for parameter in model.parameters():
    torch.nn.init.constant_(parameter, 0.5)
model.save_pretrained(sys.argv[1], max_shard_size="1GB")
"""
_LOAD = """\
import sys, torch
from transformers import LlamaForCausalLM
model = LlamaForCausalLM.from_pretrained(sys.argv[1], dtype=getattr(torch, sys.argv[2]))
print(model.dtype, {number})  # stop here
"""


@dataclass(frozen=True)
class Fork:
    """A median with the resident process (or what was kept) beside one without."""

    what: str
    unit: str
    resident: float
    plain: float
    rounds: int

    @property
    def ratio(self) -> float:
        return self.resident / self.plain


def measure(rounds: int, checkpoint_mb: int) -> list[Fork]:
    """Measure all rows."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        host = stack.enter_context(running_host())
        stack.enter_context(found_by_all(host))
        host.acquire()
        host.acquire(PYTHONPATH=str(SERVER))
        return [
            _jobs(host, folder, rounds * 5),
            _ranks(host, folder, rounds),
            _memory(host, folder),
            *_weights(host, folder, rounds, checkpoint_mb),
        ]


def _row(
    what: str, unit: str, rounds: int, resident: Callable[[], float], plain: Callable[[], float]
) -> Fork:
    pairs = [(resident(), plain()) for _ in range(rounds)]
    one, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Fork(what, unit, one, other, rounds)


def _jobs(host: Host, folder: Path, rounds: int) -> Fork:
    (folder / "job_of_bench.py").write_text(_JOB, encoding="utf-8")
    job = Job("job_of_bench:shape", 3, (str(folder),), seconds=60)

    # What this process was started with: a fork whose zygote has others runs afresh.
    given = Path("/proc/self/environ").read_bytes().split(b"\0")
    variables = dict(os.fsdecode(item).split("=", 1) for item in given if b"=" in item)
    environment = Environment((sys.executable,), variables)
    host.client.acquire(environment, wait=True)

    def ask(forked: bool) -> float:
        outcome = asyncio.run(run_job(environment, job, list[int]))
        assert outcome.value == [3] and outcome.forked == forked, outcome
        return outcome.seconds * 1000

    def ask_nobody() -> float:
        was = os.environ["TENSORPOINT_RUNTIME_DIR"]
        os.environ["TENSORPOINT_RUNTIME_DIR"] = str(folder / "none")
        try:
            return ask(False)
        finally:
            os.environ["TENSORPOINT_RUNTIME_DIR"] = was

    return _row("a job's round trip", "ms", rounds, lambda: ask(True), ask_nobody)


def _ranks(host: Host, folder: Path, rounds: int) -> Fork:
    program = folder / "rank.py"
    program.write_text(_RANK, encoding="utf-8")
    variables = {**host.environment, "PYTHONPATH": str(SERVER)}
    made = run([sys.executable, "-m", "tensorpoint", "host", "python"], variables).stdout.strip()
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(_RANKS), str(program)]

    def start(**more: str) -> float:
        # torchrun sets this for its ranks, which a zygote is keyed by.
        more = {"OMP_NUM_THREADS": "1", **more}
        began = time.time()
        done = run([sys.executable, *torchrun], host.environment, env=more, timeout=_LONG_S)
        lines = [float(found) for found in re.findall(r"line ([\d.]+)", done.stdout)]
        assert len(lines) == _RANKS, done.stderr
        return max(lines) - began

    host.acquire(OMP_NUM_THREADS="1")
    return _row(
        f"torchrun: {_RANKS} ranks at their first line, after import torch",
        "s",
        rounds,
        lambda: start(PYTHON_EXEC=made),
        start,
    )


def _memory(host: Host, folder: Path) -> Fork:
    program = folder / "sleep.py"
    program.write_text(_SLEEP, encoding="utf-8")
    before = {pid for zygote in host.status().zygotes for pid in zygote.running}

    def private(command: list[str], count: int) -> float:
        with ExitStack() as stack:
            processes = [_started(command, host, stack) for _ in range(count)]
            pids = {pid for zygote in host.status().zygotes for pid in zygote.running} - before
            return statistics.mean(_private_mib(pid) for pid in pids or processes)

    forked = private(host.command(str(program)), _IDLE)
    eventually(lambda: not any(zygote.running for zygote in host.status().zygotes), "their end")
    return Fork(
        "memory of its own, idle after import torch",
        "MiB",
        forked,
        private([sys.executable, str(program)], 1),
        1,
    )


def _started(command: list[str], host: Host, stack: ExitStack) -> int:
    process = subprocess.Popen(command, env=host.environment, stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process.pid


def _private_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return int(re.findall(r"Private_Dirty: +(\d+)", text)[0]) / 1024


def _weights(host: Host, folder: Path, rounds: int, checkpoint_mb: int) -> list[Fork]:
    """From F5, with an edit of the file just before, to the line after a checkpoint was loaded."""
    checkpoint, load = folder / "checkpoint", folder / "load.py"
    (folder / "make.py").write_text(_MAKE, encoding="utf-8")
    make = [sys.executable, str(folder / "make.py"), str(checkpoint), str(checkpoint_mb)]
    subprocess.run(make, check=True, capture_output=True)

    learn(host, folder / "train.py")
    numbers = itertools.count()

    def seconds(dtype: str, keep: bool) -> float:
        began = time.perf_counter()
        load.write_text(_LOAD.format(number=next(numbers)), encoding="utf-8")
        session = Session()
        try:
            session.launch(
                load,
                filters=[],
                args=[str(checkpoint), dtype],
                breakpoints={str(load): [line_of(load, "stop here")]},
                resident=keep,
                keepWeights=keep,
            )
            stopped = session.stopped(_LONG_S)
            passed = time.perf_counter() - began
            assert session.evaluate("str(model.dtype)", stopped) == f"'torch.{dtype}'"
        finally:
            hang_up(session)
        return passed

    try:
        for dtype in _DTYPES:
            seconds(dtype, True)
        return [
            _row(
                f"F5 → stopped, {checkpoint_mb} MB of bfloat16 loaded as {dtype}",
                "s",
                rounds,
                partial(seconds, dtype, True),
                partial(seconds, dtype, False),
            )
            for dtype in _DTYPES
        ]
    finally:
        for each in pack.packs():
            if each.source.startswith(str(folder)):
                shutil.rmtree(each.path)
