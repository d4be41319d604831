"""Layers in containers with names of their own and in wrappers: ModuleDict, DDP, torch.compile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Write
from tests.protocol.runs import run, stops

pytestmark = pytest.mark.usefixtures("resident_process")

MODEL = """\
import sys

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.heads = nn.ModuleDict({"left": nn.Linear(4, 2), "right-2": nn.Sequential(nn.ReLU())})

    def forward(self, x):
        x = self.body(x)
        return torch.cat([head(x) for head in self.heads.values()], -1)


"""
TRAINING = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).pow(2).mean().backward()
    optimizer.step()
"""
DISTRIBUTED = """\
import tempfile

store = torch.distributed.FileStore(tempfile.mktemp(), 1)
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(Net())
"""


def watched(program: Path, *layers: str) -> tuple[list[tuple[str, str]], str]:
    """Event and module of the stops of step 1, and what is said of layers that there are not."""
    conditions = [item for name in layers for item in ("--on", f"layer:{name} if step == 1")]
    done = run("--json", "--on-stop", "continue", *conditions, program)
    assert done.returncode == (3 if done.stdout else 0), done.stderr
    return [(str(stop["event"]), str(stop["module"])) for stop in stops(done)], done.stderr


def test_entries_of_a_module_dict(write: Write) -> None:
    program = write(MODEL + "model = Net()\n" + TRAINING)
    found, said = watched(program, "heads.left", "heads.right-2@exit", "heads.*@backward")
    assert found == [
        ("layer.entry", "heads.left"),
        ("layer.exit", "heads.right-2"),
        *(("layer.backward", f"heads.{name}") for name in ("right-2.0", "right-2", "left")),
    ]
    assert "no layer" not in said


def test_layers_of_a_distributed_model_go_by_their_own_paths(write: Write) -> None:
    program = write(MODEL + DISTRIBUTED + TRAINING)
    found, said = watched(program, "Net", "body", "heads.left@backward", "module.body")
    assert found == [
        ("layer.entry", ""),
        ("layer.entry", "body"),
        ("layer.backward", "heads.left"),
    ]
    assert "is called module.body, by its path or class; near to it: body" in said


@pytest.mark.parametrize(
    "compiled",
    [
        'model = torch.compile(Net(), backend="eager")\n',
        "model = Net()\nmodel.compile(backend='eager')\n",
    ],
    ids=["wrapped", "in place"],
)
def test_a_compiled_model_is_one_layer_and_that_is_said_of_those_in_it(
    write: Write, compiled: str
) -> None:
    program = write(MODEL + compiled + TRAINING)
    found, said = watched(program, "Net", "Net@exit", "body")
    assert found == [("layer.entry", ""), ("layer.exit", "")]
    assert "body names what runs inside of a compiled layer" in said
    assert "Net names" not in said


def test_a_compiled_part_goes_by_its_path_and_its_own_class(write: Write) -> None:
    part = (
        "model = Net()\nmodel.heads['left'] = torch.compile(model.heads['left'], backend='eager')\n"
    )
    found, said = watched(write(MODEL + part + TRAINING), "heads.left@exit", "Linear")
    assert found == [
        ("layer.entry", "body"),
        ("layer.entry", "heads.left"),
        ("layer.exit", "heads.left"),
    ]
    assert "names what runs" not in said
