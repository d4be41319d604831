"""Converted checkpoints that are kept: bit for bit what a plain load gives, and private."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tensorpoint.agent import weights
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
    return folder


@pytest.fixture
def kept() -> Iterator[Weights]:
    FAULTS.clear()
    keeper = Weights(lambda what, error: FAULTS.append(f"{what}: {error!r}"))
    keeper.want(True)
    yield keeper
    keeper.want(False)
    assert not FAULTS


def _save(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


def _random(model: Any, dtype: torch.dtype) -> Any:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 3)
    return model.to(dtype)


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
}
#: What each is loaded as.
LOADED = {
    "bfloat16, one file": torch.float32,
    "bfloat16, in shards": torch.float32,
    "float16, tied": torch.float32,
    "float32": torch.bfloat16,
}


def _load(folder: Path, dtype: torch.dtype, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options)


def _same(one: Any, other: Any) -> None:
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        expected = theirs[name]
        assert tensor.dtype == expected.dtype and tensor.shape == expected.shape, name
        assert torch.equal(
            tensor.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)
        ), name
    for (name, mine), (_, theirs) in zip(
        one.named_parameters(), other.named_parameters(), strict=True
    ):
        assert type(mine) is type(theirs) is torch.nn.Parameter, name
        assert mine.requires_grad == theirs.requires_grad and mine.is_leaf, name


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_every_tensor_is_bit_for_bit_that_of_a_plain_load(
    kind: str, tmp_path: Path, packs: Path
) -> None:
    folder, dtype = CHECKPOINTS[kind](tmp_path / "checkpoint"), LOADED[kind]
    plain = _load(folder, dtype)
    FAULTS.clear()
    keeper = Weights(lambda what, error: FAULTS.append(f"{what}: {error!r}"))
    keeper.want(True)
    try:
        first = _load(folder, dtype)
        files = len([*folder.glob("*.safetensors")])
        assert len([*packs.glob("*.pack")]) == files == len([*packs.iterdir()])
        found: list[Any] = []
        find = keeper._find
        keeper._find = lambda *given: found.append(find(*given)) or found[-1]  # type: ignore[method-assign]
        second = _load(folder, dtype)
        assert found and all(tensor is not None for tensor in found)
    finally:
        keeper.want(False)
    _same(first, plain)
    _same(second, plain)
    assert (second.get_input_embeddings().weight is second.lm_head.weight) == ("tied" in kind)
    assert not FAULTS


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


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\xff" * 8 + b"tp-pack1"])
def test_a_pack_that_is_none_is_made_anew(
    kept: Weights, checkpoint: Path, packs: Path, content: bytes
) -> None:
    _load(checkpoint, torch.float32)
    (file,) = packs.iterdir()
    file.write_bytes(content)
    model = _load(checkpoint, torch.float32)
    kept.want(False)
    _same(model, _load(checkpoint, torch.float32))
    assert file.stat().st_size > 1000


def test_without_room_it_loads_as_ever(
    kept: Weights, checkpoint: Path, packs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    model = _load(checkpoint, torch.float32)
    assert [*packs.iterdir()] == []
    monkeypatch.undo()
    kept.want(False)
    _same(model, _load(checkpoint, torch.float32))


def test_of_a_load_that_fails_nothing_is_kept(
    kept: Weights, checkpoint: Path, packs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(transformers.core_model_loading, "set_param_for_module", fail)
        with pytest.raises(KeyboardInterrupt):
            _load(checkpoint, torch.float32)
    assert [*packs.iterdir()] == []


def test_a_thread_that_still_writes_is_waited_for(
    packs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of the file may be that of another as soon as it is closed."""
    builder = weights._Builder.begin(str(packs / "0.pack"), "source", "torch.float32", 100)
    assert builder is not None
    entered, go, order = threading.Event(), threading.Event(), list[str]()
    pwrite = os.pwrite

    def slow(*given: Any) -> int:
        entered.set()
        assert go.wait(20)
        order.append("written")
        return pwrite(*given)

    def finish() -> None:
        builder.finish(False)
        order.append("finished")

    monkeypatch.setattr(os, "pwrite", slow)
    threads = [threading.Thread(target=builder.add, args=("one", torch.ones(5)))]
    threads[0].start()
    assert entered.wait(20)
    threads.append(threading.Thread(target=finish))
    threads[1].start()
    threads[1].join(0.1)
    go.set()
    for thread in threads:
        thread.join(20)
    builder.add("two", torch.ones(5))  # it comes too late
    assert order == ["written", "finished"] and [*packs.iterdir()] == []


def test_a_thread_that_goes_on_after_its_load_begins_no_pack(
    kept: Weights, checkpoint: Path, packs: Path
) -> None:
    late: list[Any] = []
    keep = kept._keep
    kept._keep = lambda *given: late.append(given) or keep(*given)  # type: ignore[method-assign]
    _load(checkpoint, torch.float32)
    (file,) = packs.iterdir()
    file.unlink()
    keep(*late[0])
    assert [*packs.iterdir()] == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_pack_of_somebody_else_is_not_mapped(
    kept: Weights, checkpoint: Path, packs: Path
) -> None:
    _load(checkpoint, torch.float32)
    (file,) = packs.iterdir()
    found: list[Any] = []
    find = kept._find
    kept._find = lambda *given: found.append(find(*given)) or found[-1]  # type: ignore[method-assign]
    os.chown(file, 12345, -1)
    _load(checkpoint, torch.float32)
    assert found and not any(tensor is not None for tensor in found)


def test_the_least_recently_used_go_first(
    kept: Weights, tmp_path: Path, packs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [CHECKPOINTS["bfloat16, one file"](tmp_path / str(number)) for number in range(3)]
    for number, folder in enumerate(folders[:2]):
        known = {*packs.glob("*")}
        _load(folder, torch.float32)
        (file,) = {*packs.glob("*")} - known
        os.utime(file, (number, number))
    (packs / "0123.pack.999999999").write_bytes(b"of a process that was killed")
    size = sum(path.stat().st_size for path in packs.glob("*.pack"))
    monkeypatch.setattr(weights, "MOST_BYTES", size + 20_000)
    oldest = min(packs.glob("*.pack"), key=lambda path: path.stat().st_mtime)
    _load(folders[2], torch.float32)
    assert not oldest.exists() and len([*packs.iterdir()]) == 2
    monkeypatch.setattr(weights, "MOST_BYTES", 1000)
    _load(_save(_load(folders[0], torch.bfloat16), tmp_path / "3"), torch.float32)
    assert [*packs.iterdir()] == []


def test_a_fault_of_ours_is_told_once_and_the_model_is_loaded(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[str] = []
    keeper = Weights(lambda what, error: faults.append(f"{what}: {error}"))
    materialize = transformers.core_model_loading._materialize_copy
    keeper.want(True)
    assert transformers.core_model_loading._materialize_copy is not materialize
    monkeypatch.setattr(keeper, "_find", lambda *_: 1 / 0)
    model = _load(checkpoint, torch.float32)
    assert {*faults} == {"keeping weights: division by zero"}
    assert transformers.core_model_loading._materialize_copy is materialize
    _same(model, _load(checkpoint, torch.float32))


def test_the_command_line_lists_and_drops_them(
    kept: Weights, checkpoint: Path, packs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = _load(checkpoint, torch.float32)
    (packs / "none.pack").write_bytes(b"x" * 40)
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
