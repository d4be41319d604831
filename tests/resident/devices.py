"""A program that keeps weights on a device, with the CPU and shared memory in a GPU's place.

`TENSORPOINT_WEIGHTS_DEVICE=cpu` makes the CPU the device; all else is as on a GPU. What is the
GPU's own is in `test_cuda_weights`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file

from tensorpoint.agent import mapped, weights
from tensorpoint.agent.device_weights import DeviceWeights
from tensorpoint.agent.weights import Weights
from tensorpoint.wire import pack
from tensorpoint.wire.device_memory import CPU
from tensorpoint.wire.lending import PROBE, Kept, Lender, NoLender, stamp_of, start
from tests.protocol.dap import eventually
from tests.resident.hosts import Host, running_host

DEVICE = f"{CPU}:memory"
MIB = 1 << 20


@pytest.fixture(scope="module")
def shared() -> Iterator[Host]:
    with running_host() as host:
        yield host


@pytest.fixture(autouse=True)
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TENSORPOINT_WEIGHTS_DEVICE", CPU)
    # The checkpoints here are small.
    monkeypatch.setattr(weights, "LEAST_BYTES", 1)
    monkeypatch.setattr(mapped, "_LEAST", 1)
    monkeypatch.setattr(pack, "folder", lambda: str(tmp_path / "packs"))
    yield
    while Program.running:  # those of a test that failed
        Program.running.pop().want(False)


class Program:
    """This process as a program that loads weights."""

    running: ClassVar[list[Weights]] = []

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.faults: list[str] = []
        self.said: list[str] = []
        #: Tensors that came from the device.
        self.taken = 0
        self.keeper = Weights(
            lambda what, error: self.faults.append(f"{what}: {error!r}"), self.said.append
        )
        self.running.append(self.keeper)
        take = DeviceWeights.take

        def counting(*arguments: Any) -> Any:
            found = take(*arguments)
            self.taken += found is not None
            return found

        monkeypatch.setattr(DeviceWeights, "take", counting)
        self.keeper.want(False, str(folder))

    def taken_by(self, load: Callable[[], Any]) -> int:
        """How many tensors came from the device."""
        before = self.taken
        load()
        return self.taken - before


@pytest.fixture
def program(shared: Host, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    made = Program(shared.folder, monkeypatch)
    yield made
    made.keeper.want(False)
    assert not made.faults and not made.said


def kept(folder: Path) -> dict[str, Kept]:
    """By file, what is kept in the end."""
    with Lender(str(folder)) as lender:
        return {each.source: each for each in lender.listing()}


def keep(folder: Path, *files: Path) -> None:
    """Have files kept, as a program does, and wait for that."""

    def is_there() -> bool:
        start(str(folder))  # again, while one before it is ending
        return connects(folder)

    eventually(is_there, "the broker")
    lender = Lender(str(folder))
    eventually(lambda: lender.lend(PROBE, [], DEVICE) != "", "the probe")
    lender.give_back(PROBE, DEVICE)
    for file in files:
        stamp = stamp_of(file.stat())
        eventually(
            lambda file=file, stamp=stamp: lender.lend(str(file), stamp, DEVICE) != "",
            f"{file} is read",
        )
        lender.give_back(str(file), DEVICE)
    lender.close()


def connects(folder: Path) -> bool:
    try:
        Lender(str(folder)).close()
    except NoLender:
        return False
    return True


def broker(folder: Path) -> int:
    """The process."""
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = status.read_bytes().split(b"\0")
            if b"tensorpoint.resident.broker" in words and os.fsencode(folder) in words:
                return int(status.parent.name)
    return 0


def threads() -> set[str]:
    return {each.name for each in threading.enumerate()}


def ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}/exe").exists()


def save(file: Path, value: float = 1.0, size: int = MIB) -> Path:
    save_file({"a": torch.full((size // 4,), value)}, file)
    return file


def load(file: Path) -> torch.Tensor:
    return load_file(file)["a"].to(CPU)
