"""How long shapes take after an edit: the text goes to a tracer, the table comes back.

With a warm tracer, a fork of a zygote that has what the file imports, as the language server asks:
first by probes alone, which is what hints wait for, then with symbols and faults, which follows in
the background. Cold, without a host, a process imports torch first; its import alone is beside it.
The pause after an edit that the server waits for (150 ms) is not in it.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tensorpoint.resident.messages import Environment
from tensorpoint.shapes import environment_of, trace
from tensorpoint.wire.shapes import ShapeRequest
from tests.resident.hosts import Host, found_by_all, running_host

_CNN = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, stride=2)
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        h = torch.relu(self.conv1(x))
        h = torch.relu(self.conv2(h))
        h = nn.functional.max_pool2d(h, 2)
        pooled = h.mean((2, 3))
        return self.fc(pooled)
"""
_LARGE = """\
import torch
from torch import nn
from transformers import {kind}Config, {kind}{head}


class Net(nn.Module):
    # tensorpoint: ids: i64[B, T]
    def __init__(self):
        super().__init__()
        self.model = {kind}{head}({kind}Config({fields}))
        self.head = nn.Linear(self.model.config.hidden_size, 2)

    def forward(self, ids):
        hidden = self.model(ids).last_hidden_state
        pooled = hidden.mean(1)
        return self.head(pooled)
"""
_LLAMA = (
    "vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, "
    "num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192"
)
#: Name, text, seconds that a person doesn't notice.
FILES: tuple[tuple[str, str, float], ...] = (
    ("small CNN", _CNN, 0.1),
    ("GPT-2, 124 M", _LARGE.format(kind="GPT2", head="Model", fields=""), 0.3),
    ("Llama-3-8B", _LARGE.format(kind="Llama", head="Model", fields=_LLAMA), 0.5),
)
#: Traces with the same zygote, a second apart, after which it has learnt all that it learns.
_SETTLED = 20
#: Beyond the import of what the file imports.
TARGET_COLD_S = 1.0


@dataclass(frozen=True)
class Traced:
    """Seconds for one file, medians."""

    name: str
    hints: float
    target_s: float
    #: With symbols and faults.
    thorough: float
    cold: float
    import_alone: float
    rounds: int

    @property
    def met(self) -> bool:
        return self.hints <= self.target_s

    @property
    def met_cold(self) -> bool:
        return self.cold <= self.import_alone + TARGET_COLD_S


def measure(rounds: int) -> list[Traced]:
    """All files, `rounds` edits each."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        environment = environment_of()  # as this process was started: else nothing is forked
        host = stack.enter_context(running_host())
        stack.enter_context(found_by_all(host))
        found: list[Traced] = []
        for name, text, target in FILES:
            path = folder / "net.py"
            edits = [f"{text}# {number}\n" for number in range(rounds)]
            _learn(host, path, text, environment)
            hints = [_seconds(path, each, environment, False, forked=True) for each in edits]
            thorough = [_seconds(path, each, environment, True, forked=True) for each in edits]
            cold = [_cold(path, each, environment) for each in edits[:2]]
            alone = [_import(text, environment) for _ in edits[:2]]
            medians = map(statistics.median, (hints, thorough, cold, alone))
            first, second, third, fourth = medians
            found.append(Traced(name, first, target, second, third, fourth, rounds))
    return found


def _learn(host: Host, path: Path, text: str, environment: Environment) -> None:
    """Trace it until the zygote has what it imports."""
    settled, zygote = 0, None
    while settled < _SETTLED:
        _seconds(path, text, environment, False)
        pids = [each.pid for each in host.status().zygotes]
        settled, zygote = (settled + 1, pids) if pids == zygote else (0, pids)
        time.sleep(1)


def _seconds(
    path: Path, text: str, environment: Environment, symbolic: bool, forked: bool = False
) -> float:
    request = ShapeRequest(str(path), text, symbolic=symbolic)
    began = time.perf_counter()
    outcome = asyncio.run(trace(request, environment))
    passed = time.perf_counter() - began
    assert outcome.value is not None and outcome.value.hints, outcome
    assert outcome.forked or not forked, outcome
    return passed


def _cold(path: Path, text: str, environment: Environment) -> float:
    """Without the resident process: there is no place for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORPOINT_RUNTIME_DIR", os.devnull)
        return _seconds(path, text, environment, False)


def _import(text: str, environment: Environment) -> float:
    """Of what the file imports, in a process of its own."""
    lines = [line for line in text.split("\n") if line.startswith(("import ", "from "))]
    began = time.perf_counter()
    subprocess.run(
        [*environment.python, "-c", "\n".join(lines)], env=environment.variables, check=True
    )
    return time.perf_counter() - began


if __name__ == "__main__":
    for row in measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
        print(row)
