"""Weights that stay on a device: what programs load is bit for bit what they would have had."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tensorpoint.wire.device_memory import CPU, SharedMemory
from tensorpoint.wire.lending import Lender, Lent, stamp_of
from tests.protocol.dap import eventually
from tests.resident.devices import (
    DEVICE,
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
from tests.resident.hosts import SERVER, Host, running_host
from tests.unit.agent.test_weights import CHECKPOINTS, LOADED

__all__ = ["device", "program", "shared"]

pytestmark = pytest.mark.xdist_group("resident")


# What is loaded --------------------------------------------------------------------------------


def _model(folder: Path, dtype: torch.dtype) -> Any:
    options: dict[str, Any] = {"device_map": {"": CPU}, "dtype": dtype}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options)


def _same(one: Any, other: Any) -> None:
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.dtype == theirs[name].dtype and tensor.stride() == theirs[name].stride(), name
        assert torch.equal(tensor.view(torch.uint8), theirs[name].view(torch.uint8)), name
    for (name, mine), (_, theirs) in zip(
        one.named_parameters(), other.named_parameters(), strict=True
    ):
        assert type(mine) is type(theirs) and mine.requires_grad == theirs.requires_grad, name


@pytest.mark.parametrize("as_it_is", [True, False], ids=["as it is", "converted"])
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_every_tensor_is_bit_for_bit_that_of_a_plain_load(
    kind: str, as_it_is: bool, shared: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CHECKPOINTS[kind](tmp_path / "checkpoint")
    dtype = getattr(torch, kind.split(",")[0]) if as_it_is else LOADED[kind]
    plain = _model(folder, dtype)
    program = Program(shared.folder, monkeypatch)
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    try:
        keep(shared.folder, *files)
        models: list[Any] = []
        assert program.taken_by(lambda: models.append(_model(folder, dtype))) > 10
        _same(models[0], plain)
        # It is the program's own: what it does to that no other sees.
        optimizer = torch.optim.SGD(models[0].parameters(), lr=0.1)
        ids = torch.tensor([[1, 2, 3]])
        models[0](ids, labels=ids).loss.backward()
        optimizer.step()
        for parameter in models[0].parameters():
            parameter.data.view(-1)[0] = 17.0
        _same(_model(folder, dtype), plain)
    finally:
        program.keeper.want(False)
    assert not program.faults and not program.said


def _state_dict(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    module = torch.nn.Module()
    for name, tensor in tensors.items():
        module.register_parameter(name, torch.nn.Parameter(torch.empty_like(tensor)))
    module.load_state_dict(tensors)
    return {name: parameter.data for name, parameter in module.named_parameters()}


def _sliced(file: Path) -> dict[str, torch.Tensor]:
    with safe_open(file, framework="pt") as stream:
        found = {name: stream.get_slice(name) for name in stream.keys()}  # noqa: SIM118
        return {name: part[...].to(CPU) for name, part in found.items()}


def _stored(file: Path) -> dict[str, torch.Tensor]:
    def move(storage: Any, _: str) -> Any:
        return storage.to(device=CPU)

    return torch.load(file, map_location=move, mmap=True)


#: Ways onto a device, for a file of each kind.
WAYS: dict[str, tuple[str, Callable[[Path], dict[str, torch.Tensor]]]] = {
    "to": (".safetensors", lambda file: {n: t.to(CPU) for n, t in load_file(file).items()}),
    "to, as ever": (
        ".safetensors",
        lambda file: {n: t.to(torch.device(CPU), t.dtype) for n, t in load_file(file).items()},
    ),
    "like another": (
        ".bin",
        lambda file: {
            n: t.to(torch.empty(1, dtype=t.dtype)) for n, t in torch.load(file, mmap=True).items()
        },
    ),
    "a slice": (".safetensors", _sliced),
    "load_state_dict": (".safetensors", lambda file: _state_dict(load_file(file))),
    "map_location": (".bin", _stored),
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_puts_it_there_takes_what_is_kept(
    way: str, shared: Host, program: Program, tmp_path: Path
) -> None:
    kind, put = WAYS[way]
    torch.manual_seed(5)
    state = {
        "a": torch.randn(33, 65),
        "b": torch.randn(7, 11, 13).to(torch.bfloat16),
        "c": torch.randn(5),
    }
    if way != "load_state_dict":  # which has floats alone
        state["d"] = torch.randint(-128, 128, (1000,), dtype=torch.int8)
    file = tmp_path / f"x{kind}"
    if kind == ".bin":
        torch.save(state, file)
    else:
        save_file(state, file)
    keep(shared.folder, file)
    found: dict[str, torch.Tensor] = {}
    assert program.taken_by(lambda: found.update(put(file))) == len(state)
    for name, tensor in found.items():
        assert tensor.dtype == state[name].dtype and torch.equal(tensor, state[name]), name
        tensor.zero_()
    assert all(torch.equal(again, state[name]) for name, again in put(file).items())


def test_a_file_of_safetensors_gives_what_it_gave(program: Program, tmp_path: Path) -> None:
    """By way of slices, which a device's tensors come from."""
    file = tmp_path / "x.safetensors"
    kinds = torch.float32, torch.bool, torch.int64, torch.float8_e4m3fn, torch.complex64
    state = {str(kind): torch.ones(3, 4).to(kind) for kind in kinds}
    state |= {"none": torch.empty(0, 3), "one": torch.tensor(2.5)}
    save_file(state, file)
    with safe_open(file, framework="pt") as stream:
        assert safe_open.get_tensor.__module__ == "tensorpoint.agent.device_loading"
        found = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
        with pytest.raises(Exception, match="does not contain tensor nobody"):
            stream.get_tensor("nobody")
    assert load_file(file).keys() == found.keys() == state.keys()
    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert torch.equal(
            found[name].view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8)
        )
    program.keeper.want(False)
    with safe_open(file, framework="pt") as stream:
        assert "builtin" in type(stream.get_tensor).__name__


def test_what_was_written_to_is_no_tensor_of_the_file(
    shared: Host, program: Program, tmp_path: Path
) -> None:
    keep(shared.folder, file := save(tmp_path / "x.safetensors"))
    tensor = load_file(file)["a"]
    tensor[5] = 3.0
    assert program.taken_by(lambda: tensor.to(CPU)) == 0
    assert program.taken_by(lambda: load_file(file)["a"].to(CPU)) == 1


def test_a_file_that_was_written_anew_is_kept_anew(
    shared: Host, program: Program, tmp_path: Path
) -> None:
    keep(shared.folder, file := save(tmp_path / "x.safetensors"))
    assert load(file)[0] == 1.0 and program.taken == 1
    was = file.stat()
    save(file, 2.0)
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))  # as old as it was, but another file
    assert load(file)[0] == 2.0 and program.taken == 1
    eventually(lambda: program.taken_by(lambda: load(file)) == 1, "it is kept anew")
    assert load(file)[0] == 2.0 and program.taken == 3
    assert kept(shared.folder)[str(file)].bytes == file.stat().st_size


# Programs, one after another and at once ---------------------------------------------------------

LOAD = f"""\
import os, sys, time
sys.path.insert(0, {str(SERVER)!r})
os.environ["TENSORPOINT_WEIGHTS_DEVICE"] = "cpu"
import torch
from tensorpoint.agent.weights import Weights

sys.modules.pop("safetensors", None)  # as where it is imported later
keeper = Weights(lambda *fault: print(fault), print)
keeper.want(False, sys.argv[1])
from safetensors import safe_open
from safetensors.torch import load_file
assert safe_open.get_tensor.__module__ == "tensorpoint.agent.device_loading"
tensor = load_file(sys.argv[2])["a"]
copied = tensor.to("cpu")
assert torch.equal(tensor, copied)
print("taken" if copied.data_ptr() != tensor.data_ptr() else "loaded", flush=True)
"""


def test_the_next_program_takes_what_the_first_has_loaded(tmp_path: Path) -> None:
    """The broker is started by the first that loads, and no sooner. They end as ever."""
    file = save(tmp_path / "x.safetensors")
    with running_host() as host:
        host.acquire()
        assert not (host.folder / "broker").exists()
        first = host.run("-c", LOAD + "time.sleep(2)\n", str(host.folder), str(file))
        assert (first.returncode, first.stdout, first.stderr) == (0, "loaded\n", "")
        eventually(lambda: kept(host.folder)[str(file)].state == "kept", "it is kept")
        second = host.run("-c", LOAD, str(host.folder), str(file))
        assert (second.returncode, second.stdout, second.stderr) == (0, "taken\n", "")
        assert kept(host.folder)[str(file)].borrowers == []
        other = save(tmp_path / "y.safetensors")  # it ends while it is being asked for
        third = host.run("-c", LOAD, str(host.folder), str(other))
        assert (third.returncode, third.stdout, third.stderr) == (0, "loaded\n", "")


def test_while_nothing_is_loaded_nothing_is_open(
    shared: Host, program: Program, tmp_path: Path
) -> None:
    keep(shared.folder, file := save(tmp_path / "x.safetensors"))
    load(file)
    assert kept(shared.folder)[str(file)].borrowers == [os.getpid()]
    eventually(lambda: kept(shared.folder)[str(file)].borrowers == [], "it is given back")
    eventually(lambda: "tensorpoint.weights" not in threads(), "the thread ends")
    assert "tensorpoint-weights" not in Path("/proc/self/maps").read_text()


BORROW = """\
import os, sys, time
from tensorpoint.wire.lending import Lender, Lent, stamp_of
lender = Lender(sys.argv[1])
lent = lender.lend(sys.argv[2], stamp_of(os.stat(sys.argv[2])), "cpu:memory")
assert isinstance(lent, Lent)
child = os.fork()
if child == 0:
    time.sleep(99)
print(child, flush=True)
time.sleep(99)
"""


def test_a_killed_program_gives_back_even_if_its_child_lives(shared: Host, tmp_path: Path) -> None:
    """Which has its connection."""
    keep(shared.folder, file := save(tmp_path / "x.safetensors"))
    process = subprocess.Popen(
        [sys.executable, "-c", BORROW, str(shared.folder), str(file)],
        env={**os.environ, "PYTHONPATH": str(SERVER)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        assert kept(shared.folder)[str(file)].borrowers == [process.pid]
        process.kill()
        process.wait()
        os.kill(child, 0)
        eventually(lambda: kept(shared.folder)[str(file)].borrowers == [], "it is given back")
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_two_at_once_and_what_is_open_is_not_freed(tmp_path: Path) -> None:
    file = save(tmp_path / "x.safetensors")
    with running_host() as host:
        keep(host.folder, file)
        one, other = Lender(str(host.folder)), Lender(str(host.folder))
        stamp = stamp_of(file.stat())
        lent = one.lend(str(file), stamp, DEVICE)
        assert isinstance(lent, Lent) and other.lend(str(file), stamp, DEVICE) == lent
        pid = broker(host.folder)
        dropping = threading.Thread(target=lambda: Lender(str(host.folder)).drop())
        dropping.start()
        eventually(lambda: not connects(host.folder), "it takes no more")
        assert one.lend(str(file), stamp, DEVICE) == ""
        one.give_back(str(file), DEVICE)
        time.sleep(0.3)
        memory = SharedMemory()  # it is there still, as the other has not given it back
        memory.close(memory.open(lent.handle, lent.size))
        other.give_back(str(file), DEVICE)
        dropping.join(10)
        assert not dropping.is_alive()
        eventually(lambda: ended(pid), "the broker has ended")
        keep(host.folder, file)  # by another one


def test_torch_load_onto_a_device_maps_the_file_and_fails_as_ever(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here there is no such device: the error is torch's own."""
    monkeypatch.setattr(program.keeper._devices, "_kind", "cuda")
    file = tmp_path / "x.bin"
    torch.save({"a": torch.ones(1024, 1024)}, file)
    seen: list[bool] = []
    from_file = torch.UntypedStorage.from_file

    def watching(*arguments: Any, **options: Any) -> Any:
        seen.append(True)
        return from_file(*arguments, **options)

    monkeypatch.setattr(torch.UntypedStorage, "from_file", watching)
    for number, options in enumerate(({}, {"mmap": False})):
        with pytest.raises(RuntimeError, match="Attempting to deserialize object on a CUDA"):
            torch.load(file, map_location="cuda", **options)
        assert len(seen) == 1, number  # not where the program says no
    assert torch.equal(torch.load(file, map_location="cpu")["a"], torch.ones(1024, 1024))
    assert len(seen) == 1


def test_compiled_code_is_traced_as_ever(program: Program) -> None:
    def run(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor).copy_(tensor.to(CPU)).to(torch.float64) + 1

    compiled = torch.compile(run, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(64, 1024)), run(torch.ones(64, 1024)))
