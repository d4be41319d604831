"""`"keepWeights"`: a session maps what the one before has converted. And those on a device."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tensorpoint.wire import pack
from tests.conftest import Write
from tests.protocol.dap import Message, Session

pytestmark = pytest.mark.usefixtures("resident_process")

MAKE = """\
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
sizes = dict(hidden_size=256, intermediate_size=512, vocab_size=200, num_hidden_layers=1)
model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))
model.to(torch.bfloat16).save_pretrained(sys.argv[1])
"""
LOAD = """\
import sys, torch
from transformers import LlamaForCausalLM
model = LlamaForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
plain = {name: item.float() for name, item in
         LlamaForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).named_parameters()}
assert all(torch.equal(item, plain[name]) for name, item in model.named_parameters())
mapped = open("/proc/self/maps").read().count("-weights/")
print("tensors mapped:", mapped)
"""


def test_the_second_session_maps_what_the_first_has_converted(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    try:
        _run(write(MAKE, "make.py"), folder)
        assert "tensors mapped: 0" in _run(write(LOAD), folder, keepWeights=True)
        (made,) = _made(folder)
        assert (made.dtype, made.tensors) == ("torch.float32", 9)  # norms are too small
        assert "tensors mapped: 9" in _run(write(LOAD), folder, keepWeights=True)
    finally:
        for each in _made(folder):
            shutil.rmtree(each.path)


LOAD_ON_DEVICE = """\
import sys, time, torch
from safetensors.torch import load_file
for _ in range(300):
    state = load_file(sys.argv[1] + "/model.safetensors")
    large = {name: tensor for name, tensor in state.items() if tensor.nbytes >= 1 << 16}
    there = {name: tensor.to("cpu") for name, tensor in large.items()}
    assert all(torch.equal(there[name], tensor) for name, tensor in large.items())
    taken = sum(there[name].data_ptr() != tensor.data_ptr() for name, tensor in large.items())
    if taken:
        break
    time.sleep(0.1)
print("tensors taken:", taken, "of", len(large))
"""


def test_a_session_takes_from_a_device_what_was_loaded_before(write: Write, tmp_path: Path) -> None:
    """With the CPU as the device, which a debugger's session doesn't differ in."""
    folder = tmp_path / "checkpoint"
    _run(write(MAKE, "make.py"), folder)
    env = {"TENSORPOINT_WEIGHTS_DEVICE": "cpu"}
    program = write(LOAD_ON_DEVICE)
    assert "tensors taken: 9 of 9" in _run(program, folder, keepWeightsOnDevice=True, env=env)


def _run(program: Path, folder: Path, **options: Any) -> str:
    arguments: Message = {"args": [str(folder)], **options}
    with Session() as session:
        session.launch(program, filters=[], **arguments)
        assert session.exit_code() == 0, session.output()
        session.expect("terminated")
        return session.output("stdout")


def _made(folder: Path) -> list[pack.Pack]:
    return [each for each in pack.packs() if each.source.startswith(str(folder))]
