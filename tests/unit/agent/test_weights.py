"""Converted checkpoints that are kept: bit for bit what a plain load gives, and private."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tensorpoint.agent import mapped, weights
from tensorpoint.agent.weights import Weights
from tensorpoint.resident.commands import host
from tensorpoint.wire import pack

FAULTS: list[str] = []
LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "vocab_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.fixture(autouse=True)
def packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "packs"
    monkeypatch.setattr(pack, "folder", lambda: str(folder))
    # The checkpoints here are small.
    monkeypatch.setattr(weights, "LEAST_BYTES", 1)
    monkeypatch.setattr(mapped, "_LEAST", 1)
    return folder


@pytest.fixture
def kept() -> Iterator[Weights]:
    FAULTS.clear()
    keeper = Weights(lambda what, error: FAULTS.append(f"{what}: {error!r}"))
    keeper.want(True)
    yield keeper
    keeper.want(False)
    assert not FAULTS


@contextlib.contextmanager
def _keeping() -> Iterator[Callable[[], int]]:
    """Keep weights meanwhile; gives what tells how many files of packs were mapped since."""
    faults: list[str] = []
    keeper = Weights(lambda what, error: faults.append(f"{what}: {error!r}"))

    def mapped() -> int:
        maps = Path("/proc/self/maps").read_text()
        return len({path for path in maps.split() if path.startswith(pack.folder())})

    keeper.want(True)
    try:
        yield mapped
    finally:
        keeper.want(False)
    assert not faults


def _save(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


def _random(model: Any, dtype: torch.dtype) -> Any:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 3)
    return model.to(dtype)


def _save_bin(model: Any, folder: Path, shards: int) -> Path:
    """As transformers did before safetensors."""
    model.config.save_pretrained(folder)
    state = model.state_dict()
    if shards == 1:
        torch.save(state, folder / "pytorch_model.bin")
        return folder
    where = {name: f"pytorch_model-{number % shards}.bin" for number, name in enumerate(state)}
    for file in {*where.values()}:
        torch.save({name: state[name] for name in state if where[name] == file}, folder / file)
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "bfloat16, one file": lambda at: _save(
        _random(LlamaForCausalLM(LlamaConfig(**LLAMA)), torch.bfloat16), at
    ),
    "bfloat16, in shards": lambda at: _save(
        _random(LlamaForCausalLM(LlamaConfig(**LLAMA)), torch.bfloat16), at, max_shard_size="20KB"
    ),
    "float16, tied": lambda at: _save(
        _random(
            GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=64)),
            torch.float16,
        ),
        at,
    ),
    "float32": lambda at: _save(_random(LlamaForCausalLM(LlamaConfig(**LLAMA)), torch.float32), at),
    "bfloat16, .bin": lambda at: _save_bin(
        _random(LlamaForCausalLM(LlamaConfig(**LLAMA)), torch.bfloat16), at, 1
    ),
    "bfloat16, .bin in shards": lambda at: _save_bin(
        _random(LlamaForCausalLM(LlamaConfig(**LLAMA)), torch.bfloat16), at, 3
    ),
}
#: What each is loaded as.
LOADED = {
    "bfloat16, one file": torch.float32,
    "bfloat16, in shards": torch.float32,
    "float16, tied": torch.float32,
    "float32": torch.bfloat16,
    "bfloat16, .bin": torch.float32,
    "bfloat16, .bin in shards": torch.float32,
}


def _load(folder: Path, dtype: torch.dtype, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options)


def _equal(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        expected = theirs[name]
        assert tensor.dtype == expected.dtype and tensor.shape == expected.shape, name
        assert torch.equal(
            tensor.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)
        ), name


def _same(one: Any, other: Any) -> None:
    _equal(one.state_dict(), other.state_dict())
    for (name, mine), (_, theirs) in zip(
        one.named_parameters(), other.named_parameters(), strict=True
    ):
        assert type(mine) is type(theirs) is torch.nn.Parameter, name
        assert mine.requires_grad == theirs.requires_grad and mine.is_leaf, name


@pytest.mark.parametrize("options", [{}, {"device_map": {"": "cpu"}}], ids=["", "device_map"])
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_every_tensor_is_bit_for_bit_that_of_a_plain_load(
    kind: str, options: dict[str, Any], tmp_path: Path, packs: Path
) -> None:
    folder, dtype = CHECKPOINTS[kind](tmp_path / "checkpoint"), LOADED[kind]
    plain = _load(folder, dtype)
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    with _keeping() as mapped:
        first = _load(folder, dtype, **options)
        assert mapped() == 0
        made = {each.source: each for each in pack.packs()}
        assert made.keys() == {str(file) for file in files}
        second = _load(folder, dtype, **options)
        assert mapped() == sum(each.tensors for each in made.values()) > 10
    _same(first, plain)
    _same(second, plain)
    assert (second.get_input_embeddings().weight is second.lm_head.weight) == ("tied" in kind)


Loader = Callable[[Path], dict[str, torch.Tensor]]


def _opened(file: Path) -> dict[str, torch.Tensor]:
    with safe_open(file, framework="pt") as stream:
        return {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118


LOADERS: dict[str, tuple[str, Loader]] = {
    "load_file": (".safetensors", load_file),
    "safe_open": (".safetensors", _opened),
    "torch.load, mapped": (".bin", lambda file: torch.load(file, mmap=True)),
    "torch.load": (".bin", lambda file: torch.load(file, weights_only=True)),
    "torch.load, as ever": (".bin", lambda file: torch.load(str(file), "cpu", weights_only=False)),
}
#: Ways to another dtype, as diffusers, accelerate and programs have them.
CONVERSIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "to": lambda tensor: tensor.to(torch.float32),
    "to on a device": lambda tensor: tensor.to("cpu", torch.float32, non_blocking=True),
    "to like another": lambda tensor: tensor.to(torch.empty(1)),
    "float": lambda tensor: tensor.float(),
    "double": lambda tensor: tensor.double(),
    "of a module": lambda tensor: _Holder(tensor).to(dtype=torch.float32).tensor.data,
    "half of a module": lambda tensor: _Holder(tensor).half().tensor.data,
}


class _Holder(torch.nn.Module):
    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.tensor = torch.nn.Parameter(tensor)


@pytest.mark.parametrize("how", CONVERSIONS)
@pytest.mark.parametrize("loader", LOADERS)
def test_whatever_loads_and_converts_has_the_same_bits(
    loader: str, how: str, tmp_path: Path
) -> None:
    """Folders in shards are loaded so, file by file, by diffusers and accelerate."""
    kind, load = LOADERS[loader]
    state = _random(LlamaForCausalLM(LlamaConfig(**LLAMA)), torch.bfloat16).state_dict()
    if kind == ".bin":
        torch.save(state, tmp_path / "shard.bin")
    else:
        save_file(
            {name: item.contiguous() for name, item in state.items()},
            tmp_path / "shard.safetensors",
        )

    def run() -> dict[str, torch.Tensor]:
        loaded = load(tmp_path / f"shard{kind}")
        return {name: CONVERSIONS[how](item) for name, item in loaded.items()}

    plain = run()
    with _keeping() as mapped:
        run()
        run()  # what torch.load has read is copied by the first, converted by the second
        last = run()
        assert mapped() >= len(state)
        _equal(last, plain)
        for item in last.values():
            item.zero_()
        _equal(run(), plain)


def test_what_was_written_to_is_converted_as_it_is(tmp_path: Path) -> None:
    """By whatever way, also one that no version counter knows."""
    file = tmp_path / "x.safetensors"
    save_file({name: torch.ones(64, 1024, dtype=torch.bfloat16) for name in "abcd"}, file)
    with _keeping():
        _equal(
            {name: item.float() for name, item in load_file(file).items()},
            {name: torch.ones(64, 1024) for name in "abcd"},
        )
        loaded = load_file(file)
        loaded["a"].mul_(2)
        loaded["b"].data[3, 3] = 7
        ctypes.memset(loaded["c"].data_ptr() + 1000, 0, 2)
        expected = {name: torch.ones(64, 1024) for name in "abcd"}
        expected["a"] *= 2
        expected["b"][3, 3] = 7
        expected["c"].view(-1)[500] = 0
        _equal({name: item.float() for name, item in loaded.items()}, expected)
        # What is where a checkpoint was mapped before is taken for what it is.
        del loaded
        other = tmp_path / "y.safetensors"
        save_file(
            {name: torch.full((64, 1024), 3.0, dtype=torch.bfloat16) for name in "abcd"}, other
        )
        for _ in range(2):
            _equal(
                {name: item.float() for name, item in load_file(other).items()},
                {name: torch.full((64, 1024), 3.0) for name in "abcd"},
            )


def test_what_is_no_conversion_of_a_checkpoint_is_torchs_own(tmp_path: Path, packs: Path) -> None:
    file = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(64, 1024, dtype=torch.bfloat16)}, file)
    with _keeping():
        tensor = load_file(file)["a"]
        assert torch.equal(tensor.t().float(), torch.ones(1024, 64))
        assert (
            tensor.to(
                torch.float32,
                memory_format=torch.contiguous_format,
            ).dtype
            == torch.float32
        )
        assert tensor.to(torch.int32).dtype == torch.int32 and tensor.to("meta").is_meta
        assert tensor.to(torch.bfloat16) is tensor
        leaf = tensor.clone().requires_grad_()
        leaf.float().sum().backward()
        assert leaf.grad is not None
        watched = torch.nn.Parameter(tensor)
        watched.float().sum().backward()
        assert watched.grad is not None and torch.equal(watched.grad, torch.ones_like(watched))
        assert torch.equal(
            torch.vmap(lambda row: row.float() * 2)(tensor), torch.full((64, 1024), 2.0)
        )
        with pytest.raises(TypeError, match="to\\(\\) received an invalid combination"):
            tensor.to(3.5, 5)  # pyright: ignore[reportCallIssue, reportArgumentType]
        compiled = torch.compile(lambda x: x.float() + 1, backend="eager", fullgraph=True)
        assert torch.equal(compiled(tensor), torch.full((64, 1024), 2.0))
        with pytest.raises(FileNotFoundError):
            torch.load(tmp_path / "none.bin")
        torch.save([1], tmp_path / "old.bin", _use_new_zipfile_serialization=False)
        assert torch.load(tmp_path / "old.bin") == [1]
    assert "to" not in vars(torch.Tensor) and torch.load.__module__ == "torch.serialization"


def test_a_program_saves_over_the_checkpoint_that_it_has_loaded(tmp_path: Path) -> None:
    """And keeps what it has: had we mapped the file itself, it would die of SIGBUS."""
    file = tmp_path / "last.bin"
    torch.save({"step": torch.zeros(1024, 1024)}, file)
    with _keeping() as mapped:
        torch.load(file)
        loaded = torch.load(file)
        assert mapped() == 1
        torch.save({"step": torch.ones(4)}, file)
        assert torch.equal(loaded["step"], torch.zeros(1024, 1024))
        assert torch.equal(torch.load(file)["step"], torch.ones(4))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return CHECKPOINTS["bfloat16, one file"](tmp_path / "checkpoint")


def test_what_a_program_writes_no_other_sees_and_it_trains(
    kept: Weights, checkpoint: Path, tmp_path: Path
) -> None:
    _load(checkpoint, torch.float32)
    model = _load(checkpoint, torch.float32)
    versions = [parameter._version for parameter in model.parameters()]
    with torch.no_grad():
        model.model.norm.weight.zero_()
    others = [p for p in model.parameters() if p is not model.model.norm.weight]
    assert sum(p._version for p in others) == sum(versions) - versions[-2]  # a counter for each
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.tensor([[1, 2, 3]])
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    again = _load(checkpoint, torch.float32)
    kept.want(False)
    _same(again, _load(checkpoint, torch.float32))
    # Each has a storage of its own: else they would be saved as tied.
    _same(_load(_save(model, tmp_path / "trained"), torch.float32), model)


def test_a_checkpoint_that_was_written_anew_is_loaded_anew(kept: Weights, checkpoint: Path) -> None:
    before = _load(checkpoint, torch.float32)
    file = checkpoint / "model.safetensors"
    was = os.stat(file)
    model = _load(checkpoint, torch.bfloat16)
    with torch.no_grad():
        model.lm_head.weight.add_(1)
    model.save_pretrained(checkpoint)
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))  # as old as it was, but another file
    after = _load(checkpoint, torch.float32)
    assert not torch.equal(before.lm_head.weight, after.lm_head.weight)
    kept.want(False)
    _same(after, _load(checkpoint, torch.float32))


def test_as_it_is_on_the_disk_nothing_is_kept(kept: Weights, checkpoint: Path, packs: Path) -> None:
    _load(checkpoint, torch.bfloat16)
    assert not packs.exists()


@pytest.mark.parametrize("content", [b"", b"x" * 100])
def test_a_file_that_is_no_kept_tensor_is_made_anew(
    kept: Weights, checkpoint: Path, packs: Path, content: bytes
) -> None:
    _load(checkpoint, torch.float32)
    (folder,) = packs.iterdir()
    sizes = {file: file.stat().st_size for file in folder.iterdir() if file.name != pack.ABOUT}
    for file in sizes:
        file.write_bytes(content)
    model = _load(checkpoint, torch.float32)
    kept.want(False)
    _same(model, _load(checkpoint, torch.float32))
    assert {file: file.stat().st_size for file in sizes} == sizes


#: Loads a checkpoint while `/dev/shm` is full from the start, and filled up in the middle.
_FULL = """\
import os, sys, torch
sys.path.insert(0, sys.argv[1])
from safetensors.torch import load_file
from tensorpoint.agent import weights
from tensorpoint.wire import pack

faults = []
keeper = weights.Weights(lambda *fault: faults.append(fault))
keeper.want(True)
left = os.statvfs("/dev/shm").f_bavail * 4096
file = os.open("/dev/shm/other", os.O_RDWR | os.O_CREAT)

def convert():
    for name, item in load_file(sys.argv[2]).items():
        assert torch.equal(item.float(), torch.full((64, 1024), float(name[1:]))), name
    return sum(each.tensors for each in pack.packs())

os.posix_fallocate(file, 0, left)
print(convert())
os.ftruncate(file, 0)
begin = weights._Kept._begin_pack
def fill(self):
    begin(self)
    if sum(each.tensors for each in pack.packs()) == 3:
        os.posix_fallocate(file, 0, os.statvfs("/dev/shm").f_bavail * 4096)
weights._Kept._begin_pack = fill
print(convert())
os.ftruncate(file, 0)
weights._Kept._begin_pack = begin
print(convert(), faults)
"""


def test_without_room_it_loads_as_ever(tmp_path: Path) -> None:
    """In a `/dev/shm` of its own, of 8 MB, which is really full."""
    file = tmp_path / "x.safetensors"
    state = {f"w{n}": torch.full((64, 1024), float(n), dtype=torch.bfloat16) for n in range(8)}
    save_file(state, file)
    (tmp_path / "load.py").write_text(_FULL)
    unshare = [shutil.which("unshare") or "false", "--map-root-user", "--mount", "sh", "-c"]
    mount = "mount -t tmpfs -o size=8m tmpfs /dev/shm"
    if subprocess.run([*unshare, mount], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here")
    server = Path(weights.__file__).parents[2]
    load = [sys.executable, str(tmp_path / "load.py"), str(server), str(file)]
    done = subprocess.run(
        [*unshare, f'{mount} && exec "$@"', "sh", *load],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "0\n3\n8 []\n", done.stderr


def test_what_was_kept_of_a_load_that_fails_is_whole(
    kept: Weights, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(transformers.core_model_loading, "set_param_for_module", fail)
        with pytest.raises(KeyboardInterrupt):
            _load(checkpoint, torch.float32)
    model = _load(checkpoint, torch.float32)
    kept.want(False)
    _same(model, _load(checkpoint, torch.float32))


def test_a_program_that_is_killed_while_it_writes_leaves_nothing(
    checkpoint: Path, packs: Path
) -> None:
    pid = os.fork()
    if pid == 0:
        weights._write_all = lambda number, data: (
            os.write(number, data[:10]),
            os.kill(os.getpid(), 9),
        )  # type: ignore[assignment,func-returns-value]
        keeper = Weights(lambda *_: None)
        keeper.want(True)
        for item in load_file(checkpoint / "model.safetensors").values():
            item.float()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
    (made,) = packs.iterdir()
    assert [file.name for file in made.iterdir()] == [pack.ABOUT]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("which", ["all", "one"])
def test_a_pack_of_somebody_else_is_not_mapped(checkpoint: Path, packs: Path, which: str) -> None:
    with _keeping() as mapped:
        _load(checkpoint, torch.float32)
        (folder,) = packs.iterdir()
        before = {file.name for file in folder.iterdir()}
        os.chown(packs if which == "all" else folder, 12345, -1)
        model = _load(checkpoint, torch.float32)
        assert mapped() == 0 and {file.name for file in folder.iterdir()} == before
    _same(model, _load(checkpoint, torch.float32))


def test_the_least_recently_used_go_first(
    kept: Weights, tmp_path: Path, packs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [CHECKPOINTS["bfloat16, one file"](tmp_path / str(number)) for number in range(3)]
    for number, folder in enumerate(folders[:2]):
        known = {*packs.glob("*")}
        _load(folder, torch.float32)
        (made,) = {*packs.glob("*")} - known
        os.utime(made, (number, number))
    size = sum(each.bytes for each in pack.packs())
    monkeypatch.setattr(weights, "MOST_BYTES", size + 20_000)
    oldest = pack.packs()[-1]
    _load(folders[2], torch.float32)
    sources = {each.source for each in pack.packs()}
    assert sources == {str(folder / "model.safetensors") for folder in folders[1:]}
    assert oldest.source not in sources
    monkeypatch.setattr(weights, "MOST_BYTES", 1000)
    kept._room._counted = 0
    other = _save(_load(folders[0], torch.bfloat16), tmp_path / "3")
    _load(other, torch.float32)
    assert sum(each.bytes for each in pack.packs()) <= 1000


def test_a_fault_of_ours_is_told_once_and_the_model_is_loaded(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[str] = []
    keeper = Weights(lambda what, error: faults.append(f"{what}: {error}"))
    keeper.want(True)
    assert "to" in vars(torch.Tensor)
    monkeypatch.setattr(keeper, "_find", lambda *_: 1 / 0)
    model = _load(checkpoint, torch.float32)
    assert {*faults} == {"keeping weights: division by zero"}
    assert "to" not in vars(torch.Tensor)
    _same(model, _load(checkpoint, torch.float32))


def test_the_command_line_lists_and_drops_them(
    kept: Weights, checkpoint: Path, packs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = _load(checkpoint, torch.float32)
    (packs / "none").mkdir()
    capsys.readouterr()
    assert host("weights", as_json=True) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["source"] == str(checkpoint / "model.safetensors")
    assert (shown["dtype"], shown["tensors"]) == ("torch.float32", len(model.state_dict()))
    assert host("weights") == 0
    assert "model.safetensors as float32: 0 MiB" in capsys.readouterr().out
    assert host("weights", drop=True) == 0
    assert not packs.exists()
    assert host("weights") == 0
    assert "no weights are kept" in capsys.readouterr().err
    assert host("weights", drop=True) == 0  # there is nothing to drop
    packs.write_text("what can't be removed as a folder is")
    assert host("weights", drop=True) == 1
    assert f"{packs}: Not a directory" in capsys.readouterr().err
    packs.unlink()
    kept.want(False)
    _same(model, _load(checkpoint, torch.float32))  # who has mapped them keeps them
