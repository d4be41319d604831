"""`tensorpoint/layers`, `tensorpoint/status` and `tensorpoint/check` on real programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.dap import Session, eventually, line_of

pytestmark = pytest.mark.usefixtures("resident_process")

NET = """\
import time
from pathlib import Path

import torch
from torch import nn

torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.first(x))  # call layers


net = Net()
"""
THREE_STEPS = NET + "for _ in range(3):\n    net(torch.ones(1, 4))\nprint('after')  # after\n"
FOREVER = (
    NET
    + """\
end = Path(__file__).with_suffix(".end")
step = 0
while not end.exists():
    net(torch.ones(1, 4))
    print("step", step, flush=True)
    step += 1
    time.sleep(0.02)
"""
)


@pytest.fixture
def program(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_the_tree_of_a_stopped_program(program: Any) -> None:
    path = program(THREE_STEPS)
    with Session() as session:
        session.launch(path, breakpoints={str(path): [line_of(path, "# after")]})
        session.stopped()
        tree = session.request("tensorpoint/layers")
        assert [(node["path"], node["type"]) for node in tree["layers"]] == [
            ("", "Net"),
            ("first", "Linear"),
            ("last", "Linear"),
        ]
        root = tree["layers"][0]
        assert root["parameters"] == 4 * 8 + 8 + 8 * 2 + 2
        forward = line_of(path, "# call layers") - 1
        assert (root["file"], root["line"]) == (str(path), forward)
        assert tree["step"] == 2 and tree["roots"] == [{"type": "Net", "step": 2}]
        assert session.request("tensorpoint/layers", modules=False)["layers"] == []
        assert "modules" in session.refused("tensorpoint/layers", modules=3)
        session.resume()
        assert session.exit_code() == 0


def test_the_tree_inside_a_forward_with_nothing_armed(program: Any) -> None:
    path = program(THREE_STEPS)
    with Session() as session:
        session.launch(path, filters=[], breakpoints={str(path): [line_of(path, "# call layers")]})
        session.stopped()
        tree = session.request("tensorpoint/layers")
        assert [node["path"] for node in tree["layers"]] == ["", "first", "last"]
        assert tree["note"] is None


def test_the_status_of_a_running_program(program: Any) -> None:
    path = program(FOREVER)
    with Session() as session:
        session.launch(path, tensorpoints=["loss > 1000"])
        eventually(lambda: "step 3\n" in session.output("stdout"), "some steps")
        status = session.request("tensorpoint/status")
        assert {item["text"] for item in status["tensorpoints"]} == {
            'nonfinite("*")',
            "loss > 1000",
        }
        assert status["step"] >= 3 and status["optimizer_step"] == 0
        assert not status["recording"]
        session.console("tp on layer:nothing.here")
        texts = [item["text"] for item in session.request("tensorpoint/status")["tensorpoints"]]
        assert "layer:nothing.here" in texts
        path.with_suffix(".end").touch()
        assert session.exit_code() == 0


def test_conditions_are_checked_before_there_is_a_program() -> None:
    with Session() as session:
        session.initialize()
        good = session.request("tensorpoint/check", condition="> 10", filter="grad_norm")
        assert good == {"verified": True, "condition": "grad_norm() > 10"}
        bad = session.request("tensorpoint/check", condition="loss = 10")
        assert not bad["verified"] and 'write "=="' in bad["message"]
        assert "condition" in session.refused("tensorpoint/check", condition=None)


@pytest.mark.usefixtures("cold")
def test_without_torch_and_without_debugging(program: Any) -> None:
    path = program("import time\nprint('here', flush=True)\ntime.sleep(60)  # wait\n")
    with Session() as session:
        session.launch(path, breakpoints={str(path): [line_of(path, "# wait")]})
        session.stopped()
        assert "torch is not imported" in session.request("tensorpoint/layers")["note"]
    with Session() as session:
        session.initialize()
        session.send("launch", program=str(path), noDebug=True, python=sys.executable)
        eventually(lambda: session.seen("process"), "the program")
        assert "there is no agent" in session.refused("tensorpoint/layers")
        assert session.request("tensorpoint/status")["step"] is None
