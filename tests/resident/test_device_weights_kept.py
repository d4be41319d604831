"""Weights that stay on a device: room, faults of every process involved, tokens and commands."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorpoint.agent import device_weights
from tensorpoint.agent.weights import Weights
from tensorpoint.resident.commands import host as command
from tensorpoint.wire.device_memory import DeviceError, SharedMemory, memory_of
from tensorpoint.wire.lending import Lender, Lent, NoLender, stamp_of
from tests.protocol.dap import eventually
from tests.resident.devices import (
    DEVICE,
    MIB,
    Program,
    broker,
    connects,
    device,
    ended,
    keep,
    kept,
    load,
    program,
    save,
    shared,
    threads,
)
from tests.resident.hosts import Host, running_host
from tests.resident.hosts import start as start_host

__all__ = ["device", "program", "shared"]

pytestmark = pytest.mark.xdist_group("resident")


# Room ------------------------------------------------------------------------------------------


def test_what_was_used_longest_ago_goes_first_but_never_what_is_open(tmp_path: Path) -> None:
    files = [save(tmp_path / f"{number}.safetensors") for number in range(4)]
    names = [str(file) for file in files]
    with running_host(TENSORPOINT_DEVICE_WEIGHTS_MIB="3") as host:
        folder = host.folder
        keep(folder, files[0], files[1])
        keep(folder, files[0])  # the second is the oldest now
        keep(folder, files[2])
        assert sorted(kept(folder)) == [names[0], names[2]]
        lender = Lender(str(folder))
        assert isinstance(lender.lend(names[0], stamp_of(files[0].stat()), DEVICE), Lent)
        keep(folder, files[3])
        assert sorted(kept(folder)) == [names[0], names[3]]
        other = Lender(str(folder))
        assert isinstance(other.lend(names[3], stamp_of(files[3].stat()), DEVICE), Lent)
        stamp = stamp_of(files[1].stat())
        eventually(lambda: other.lend(names[1], stamp, DEVICE) != "", "it is refused")
        assert other.lend(names[1], stamp, DEVICE) == "the device has no room for 1 MiB more"
        large = save(tmp_path / "large.safetensors", size=4 * MIB)
        stamp = stamp_of(large.stat())
        eventually(lambda: other.lend(str(large), stamp, DEVICE) != "", "it is refused")
        said = other.lend(str(large), stamp, DEVICE)
        assert said == (
            "it has 4 MiB, and 3 at most are kept on a device (TENSORPOINT_DEVICE_WEIGHTS_MIB)"
        )
        held = kept(folder)
        assert held[str(large)].state == f"failed: {said}" and held[str(large)].bytes == 0


def test_what_is_not_kept_is_said_once_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save(tmp_path / "x.safetensors", size=2 * MIB)
    with running_host(TENSORPOINT_DEVICE_WEIGHTS_MIB="1") as host:
        program = Program(host.folder, monkeypatch)
        eventually(lambda: bool(load(file)[0] == 1.0 and program.said), "it is said")
        for _ in range(3):
            assert load(file)[0] == 1.0
        program.keeper.want(False)
    assert program.said == [
        f"{file} is not kept on cpu: it has 2 MiB, and 1 at most are kept on a device "
        "(TENSORPOINT_DEVICE_WEIGHTS_MIB)."
    ]
    assert not program.taken and not program.faults


# Faults ----------------------------------------------------------------------------------------


def test_a_killed_broker_is_replaced_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save(tmp_path / "x.safetensors")
    with running_host() as host:
        program = Program(host.folder, monkeypatch)
        keep(host.folder, file)
        assert load(file)[0] == 1.0 and program.taken == 1  # and it is open
        os.kill(broker(host.folder), signal.SIGKILL)
        eventually(lambda: not connects(host.folder), "it has gone")
        assert load(file)[0] == 1.0
        assert program.taken == 1  # what dead processes have shared is not believed
        eventually(lambda: program.taken_by(lambda: load(file)) == 1, "another broker keeps it")
        assert load(file)[0] == 1.0
        program.keeper.want(False)
    assert not program.faults and not program.said


def test_a_broker_that_is_killed_while_a_tensor_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_weights, "_IDLE_S", 60.0)  # it stays open
    file = save(tmp_path / "x.safetensors")
    with running_host() as host:
        program = Program(host.folder, monkeypatch)
        keep(host.folder, file)
        assert program.taken_by(lambda: load(file)) == 1
        copy = SharedMemory.copy

        def killing(*arguments: Any) -> None:
            with Lender(str(host.folder)) as lender:
                os.kill(broker(host.folder), signal.SIGKILL)
                eventually(lambda: not lender.is_there(), "it is dead")
            copy(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(SharedMemory, "copy", killing)
            assert load(file)[0] == 1.0 and program.taken == 1
        program.keeper.want(False)
    assert not program.faults and not program.said


def test_a_killed_host_takes_the_broker_along_and_the_next_has_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = save(tmp_path / "x.safetensors")
    with running_host() as host:
        program = Program(host.folder, monkeypatch)
        keep(host.folder, file)
        load(file)
        pid = broker(host.folder)
        os.kill(host.status().pid, signal.SIGKILL)
        assert load(file)[0] == 1.0  # from it or not
        eventually(lambda: ended(pid), "the broker has ended")
        assert load(file)[0] == 1.0
        process = start_host(host)
        try:
            eventually(lambda: program.taken_by(lambda: load(file)) == 1, "another broker keeps it")
            program.keeper.want(False)
        finally:
            host.client.stop()
            process.wait()
    assert not program.faults and not program.said


def test_what_was_spoiled_is_not_taken_and_read_again(
    shared: Host, program: Program, tmp_path: Path
) -> None:
    """By one byte, anywhere, written by whoever had it open."""
    keep(shared.folder, file := save(tmp_path / "x.safetensors", size=9 * MIB))
    lender, memory = Lender(str(shared.folder)), SharedMemory()
    lent = lender.lend(str(file), stamp_of(file.stat()), DEVICE)
    assert isinstance(lent, Lent)
    address = memory.open(lent.handle, lent.size)
    memory.write(address + 5 * MIB + 123, bytearray(b"\1"), 1)
    memory.close(address)
    lender.close()
    assert bool((load(file) == 1.0).all()) and program.taken == 0
    eventually(lambda: program.taken_by(lambda: load(file)) == 1, "it was read again")
    assert bool((load(file) == 1.0).all())


def test_where_sharing_does_not_work_it_is_said_once_and_loaded(
    shared: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unshared(SharedMemory):
        """As in some containers: what is opened is memory, but not what the other has written."""

        def open(self, handle: str, size: int) -> int:
            return self.allocate(size)

    class Refused(SharedMemory):
        def open(self, handle: str, size: int) -> int:
            raise DeviceError("cuIpcOpenMemHandle_v2: invalid device context (201)")

    keep(shared.folder, file := save(tmp_path / "x.safetensors"))
    for kind, why in (
        (Unshared, "one process does not see there what another writes"),
        (Refused, "cuIpcOpenMemHandle_v2: invalid device context (201)"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(device_weights, "memory_of", lambda _, kind=kind: kind())
            program = Program(shared.folder, patch)
            for _ in range(3):
                assert load(file)[0] == 1.0
            program.keeper.want(False)
        assert program.said == [f"weights are not kept on cpu, they load as ever: {why}."]
        assert not program.taken and not program.faults


def test_what_is_wrong_twice_is_not_asked_for_again(
    shared: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the probe came through: else it would be read again and again."""

    class Faulty(SharedMemory):
        def copy(self, target: int, source: int, size: int, stream: int) -> None:
            super().copy(target, source, size, stream)
            if size > 1 << 16:
                ctypes.memset(target + size // 2, 0xAA, 1)

    keep(shared.folder, file := save(tmp_path / "x.safetensors"))
    monkeypatch.setattr(device_weights, "memory_of", lambda _: Faulty())
    program = Program(shared.folder, monkeypatch)
    eventually(lambda: bool(load(file)[-1] == 1.0 and program.said), "it is said")
    assert load(file)[-1] == 1.0
    program.keeper.want(False)
    assert program.said == [
        "weights are not kept on cpu, they load as ever: "
        f"what is there of {file} is not what is in the file."
    ]
    assert not program.taken and not program.faults


def test_without_a_host_it_is_said_once_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_weights, "_START_S", 0.5)
    file = save(tmp_path / "x.safetensors")
    program = Program(tmp_path / "nobody", monkeypatch)
    eventually(lambda: bool(load(file)[0] == 1.0 and program.said), "it is said")
    load(file)
    program.keeper.want(False)
    (said,) = program.said
    assert said == (
        "weights are not kept on cpu, they load as ever: no resident process is "
        "running (No such file or directory)."
    )
    assert not program.taken and not program.faults


def test_who_has_no_token_gets_nothing(shared: Host, tmp_path: Path) -> None:
    keep(shared.folder, file := save(tmp_path / "x.safetensors"))
    token = shared.folder / "token"
    right = token.read_text()
    try:
        token.write_text("0" * len(right))
        lender = Lender(str(shared.folder))
        with pytest.raises(NoLender, match="wrong token"):
            lender.lend(str(file), stamp_of(file.stat()), DEVICE)
        with pytest.raises(NoLender, match="wrong token"):
            lender.drop()
    finally:
        token.write_text(right)
    assert (shared.folder / "broker").stat().st_mode & 0o777 == 0o600
    assert str(file) in kept(shared.folder)


def test_a_device_that_there_is_none_of_is_refused(shared: Host, tmp_path: Path) -> None:
    file = save(tmp_path / "x.safetensors")
    keep(shared.folder)
    lender, stamp = Lender(str(shared.folder)), stamp_of(file.stat())
    eventually(lambda: lender.lend(str(file), stamp, "mps:0") != "", "it is refused")
    assert lender.lend(str(file), stamp, "mps:0") == "there is no memory of mps to share"
    with pytest.raises(DeviceError):
        memory_of("mps:0")


def test_switched_off_nothing_is_replaced_and_nobody_asked(tmp_path: Path) -> None:
    eventually(lambda: "tensorpoint.weights" not in threads(), "those of other tests have ended")
    keeper = Weights(lambda *_: None)
    keeper.want(True)
    try:
        assert not {"cuda", "copy_"} & vars(torch.Tensor).keys()
        assert "to" not in vars(torch.UntypedStorage)
        assert load(save(tmp_path / "x.safetensors"))[0] == 1.0
        assert "tensorpoint.weights" not in threads()
    finally:
        keeper.want(False)
    assert "to" not in vars(torch.Tensor)


# By hand ---------------------------------------------------------------------------------------


def test_the_command_line_lists_and_drops_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save(tmp_path / "x.safetensors")
    with running_host() as host:
        monkeypatch.setenv("TENSORPOINT_RUNTIME_DIR", str(host.folder))
        assert command("weights") == 0
        assert "no weights are kept" in capsys.readouterr().err
        keep(host.folder, file)
        lender = Lender(str(host.folder))
        lender.lend(str(file), stamp_of(file.stat()), DEVICE)
        assert command("weights") == 0
        out = capsys.readouterr().out
        assert f"{file} on cpu:memory: 1 MiB, in use by {os.getpid()}, last used 20" in out
        assert command("weights", as_json=True) == 0
        (shown,) = json.loads(capsys.readouterr().out)
        assert (shown["source"], shown["device"]) == (str(file), DEVICE)
        lender.close()
        pid = broker(host.folder)
        assert command("weights", drop=True) == 0
        eventually(lambda: ended(pid), "the broker has ended")
        assert command("weights", as_json=True) == 0
        assert json.loads(capsys.readouterr().out) == []
