"""Weights that stay on a device: a real host, broker and programs, on the CPU in a GPU's place.

`TENSORPOINT_WEIGHTS_DEVICE=cpu` makes it the device, with shared memory as its memory; all else is
as on a GPU. What is the GPU's own is in `test_cuda_weights`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tensorpoint.agent import device_weights, mapped, weights
from tensorpoint.agent.device_weights import DeviceWeights
from tensorpoint.agent.weights import Weights
from tensorpoint.resident.commands import host as command
from tensorpoint.wire import pack
from tensorpoint.wire.device_memory import CPU, DeviceError, SharedMemory, memory_of
from tensorpoint.wire.lending import PROBE, Kept, Lender, Lent, NoLender, stamp_of, start
from tests.protocol.dap import eventually
from tests.resident.hosts import SERVER, Host, running_host
from tests.resident.hosts import start as start_host
from tests.unit.agent.test_weights import CHECKPOINTS, LOADED

pytestmark = pytest.mark.xdist_group("resident")

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
