"""`tensorpoint run` as a subprocess, and a program to run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SERVER = Path(__file__).resolve().parents[2] / "server"
DEADLINE = 120.0

#: Runs five steps; on steps 2 and 4 the layer `gate` makes a NaN. What it prints is buffered.
NAN_PROGRAM = """\
import sys

import torch
from torch import nn


class Gate(nn.Module):
    def forward(self, x):
        return torch.log(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.gate = Gate()

    def forward(self, x):
        self.lin(x)
        return self.gate(x)


def main():
    model = Model()
    for step in range(5):
        x = torch.full((2, 4), 1.0)
        if step in (2, 4):
            x[1, 3] = -1.0
        model(x)
        print("step", step)
    sys.exit(7)


if __name__ == "__main__":
    main()
"""
#: The line of the operation that makes the NaN.
GATE_LINE = next(n for n, line in enumerate(NAN_PROGRAM.splitlines(), 1) if "torch.log(" in line)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SERVER)}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "tensorpoint", "run", *map(str, arguments)]


def run(
    *arguments: str | Path, stdin: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env=environment(),
        cwd=cwd,
        check=False,
    )


def stops(done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    """The stops of a --json run; anything else on stdout fails."""
    try:
        return [json.loads(line) for line in done.stdout.splitlines()]
    except ValueError:
        pytest.fail(f"stdout is not JSON lines:\n{done.stdout}\nstderr:\n{done.stderr}")


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    def write(code: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(code, encoding="utf-8")
        return path

    return write


@pytest.fixture
def nan_program(program: Callable[[str], Path], forked: None) -> Path:
    """NAN_PROGRAM, which imports torch: from the resident process."""
    return program(NAN_PROGRAM)


# -- stops


def assert_gone(pids: set[int]) -> None:
    end = time.monotonic() + DEADLINE
    while left := {pid for pid in pids if _alive(pid)}:
        if time.monotonic() > end:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            pytest.fail(f"left behind: {left}")
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")
