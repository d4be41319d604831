"""`"keepWeights": true`: a session maps what the one before has converted."""

from __future__ import annotations

import shutil
from pathlib import Path

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


def _run(program: Path, folder: Path, **options: bool) -> str:
    arguments: Message = {"args": [str(folder)], **options}
    with Session() as session:
        session.launch(program, filters=[], **arguments)
        assert session.exit_code() == 0, session.output()
        session.expect("terminated")
        return session.output("stdout")


def _made(folder: Path) -> list[pack.Pack]:
    return [each for each in pack.packs() if each.source.startswith(str(folder))]
