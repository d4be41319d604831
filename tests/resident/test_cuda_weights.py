"""Weights that stay on a GPU: what is CUDA's own. Skipped, visibly, where there is none."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tensorpoint.wire.device_memory import CUDA, DeviceError, memory_of
from tests.resident.hosts import SERVER, running_host

_WHY_NOT = "" if torch.cuda.is_available() else "there is no GPU that this torch can use"
needs_gpu = pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)
pytestmark = pytest.mark.xdist_group("resident")

#: Loads a checkpoint in each way; says how many tensors came from the broker, and that all is as
#: torch loads it.
LOAD = f"""\
import sys, time
sys.path.insert(0, {str(SERVER)!r})
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tensorpoint.agent import device_weights
from tensorpoint.agent.weights import Weights

folder, file = sys.argv[1:]
stored = file + ".bin"
taken, take = [], device_weights.DeviceWeights.take
def counting(*arguments):
    found = take(*arguments)
    taken.append(found is not None)
    return found
device_weights.DeviceWeights.take = counting

plain = load_file(file)
torch.empty(1, device="cuda")
keeper = Weights(lambda *fault: print(fault), print)
keeper.want(False, folder)
state = load_file(file)
module = torch.nn.Module()
for name, tensor in plain.items():
    module.register_parameter(name, torch.nn.Parameter(torch.empty_like(tensor, device="cuda")))
module.load_state_dict(load_file(file))
loaded = {{
    "to": {{name: tensor.to("cuda") for name, tensor in state.items()}},
    "cuda": {{name: tensor.cuda() for name, tensor in state.items()}},
    "float": {{name: tensor.to("cuda:0", torch.float32) for name, tensor in state.items()}},
    "half": {{name: tensor.to("cuda:0", torch.float16) for name, tensor in state.items()}},
    "load_file": load_file(file, device="cuda"),
    "load_state_dict": {{n: parameter.data for n, parameter in module.named_parameters()}},
    "torch.load": torch.load(stored, map_location="cuda"),
}}
for how, tensors in loaded.items():
    for name, tensor in tensors.items():
        assert tensor.is_cuda, how
        expected = plain[name].to(tensor.dtype)
        assert torch.equal(tensor.cpu().view(torch.uint8), expected.view(torch.uint8)), (how, name)
        tensor.zero_()  # it is the program's own
print("taken", sum(taken), "of", len(taken), flush=True)
time.sleep(float(3))
"""


@needs_gpu
def test_tensors_are_copied_from_the_broker_bit_for_bit(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(0)
    state = {f"w{number}": torch.randn(512, 700).to(torch.bfloat16) for number in range(8)}
    file = tmp_path / "x.safetensors"
    save_file(state, file)
    torch.save(state, f"{file}.bin")
    with running_host() as host:
        for number in range(3):
            done = subprocess.run(
                [sys.executable, "-c", LOAD, str(host.folder), str(file)],
                check=False,
                capture_output=True,
                text=True,
                timeout=200,
            )
            assert done.returncode == 0, done.stderr + host.log()
            if number:
                words = done.stdout.split()
                assert words[0] == "taken" and words[1] == words[3] != "0", done.stdout + host.log()
            time.sleep(2)


@needs_gpu
def test_memory_of_a_gpu_is_written_shared_and_copied() -> None:
    """By the driver alone, with a process that opens it."""
    from tensorpoint.wire.cuda import uuid_of

    torch.empty(1, device="cuda")
    name = f"{CUDA}:{uuid_of(0)}"
    memory = memory_of(name)
    free, total = memory.room()
    assert 0 < free <= total
    address = memory.allocate(1000)
    memory.write(address, bytearray(range(250)) * 4, 1000)
    handle = memory.share(address)
    read = f"""\
import sys, torch
sys.path.insert(0, {str(SERVER)!r})
from tensorpoint.wire.device_memory import memory_of
found = torch.empty(1000, dtype=torch.uint8, device="cuda")
memory = memory_of({name!r})
address = memory.open({handle!r}, 1000)
memory.copy(found.data_ptr(), address, 1000, torch.cuda.current_stream().cuda_stream)
memory.close(address)
assert bytes(found.cpu().tolist()) == bytes(range(250)) * 4
"""
    done = subprocess.run(
        [sys.executable, "-c", read], check=False, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    memory.free(address)


def test_without_a_driver_the_reason_is_said() -> None:
    if not _WHY_NOT:
        pytest.skip("there is one here")
    with pytest.raises(DeviceError, match=r"no driver of CUDA that can share memory|cuInit"):
        memory_of(f"{CUDA}:GPU-0")
