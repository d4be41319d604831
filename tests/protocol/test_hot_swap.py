"""`"hotSwap": true`: a function that is edited while the program runs, and what is said of it."""

from __future__ import annotations

import pytest

from tests.conftest import Write
from tests.protocol.dap import Session, eventually, line_of

pytestmark = pytest.mark.usefixtures("resident_process")

PROGRAM = """\
import torch
from model import Net

net = Net()
for _ in range(100_000):
    y = net(torch.ones(2))
"""
NET = """\
import time

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2.0

    def forward(self, x):
        time.sleep(0.01)
        y = x * self.scale  # before
        return y
"""


def test_an_edit_is_in_force_at_the_next_call(write: Write) -> None:
    model = write(NET, "model.py")
    program = write(PROGRAM)
    with Session() as session:
        places = {str(model): [line_of(model, "# before")]}
        session.launch(program, hotSwap=True, filters=[], breakpoints=places)
        stopped = session.stopped()
        assert session.top(stopped) == ("model.py", line_of(model, "# before"))
        # At once, perhaps before the file was looked at. It moves, and the call that runs stays.
        edited = NET.replace("# before", "# before\n        y = y + 40  # after")
        model.write_text(f"\n\n{edited}", encoding="utf-8")
        eventually(lambda: "has its new code" in session.output(), "the swap")
        said = session.output("console")
        assert "Tensorpoint: model.py: Net.forward has its new code\n" in said
        assert "model.py: Net.forward is running: that call goes on with the old code" in said
        assert "__init__" not in said
        after = line_of(model, "# after") + 1
        source = {"path": str(model)}
        answer = session.request(
            "setBreakpoints", source=source, breakpoints=[{"line": after}], sourceModified=True
        )
        assert answer["breakpoints"][0]["verified"]
        session.resume(stopped)
        stopped = session.stopped()
        assert session.top(stopped) == ("model.py", after)
        assert session.evaluate("y[0].item()", stopped) == "42.0"
        # An edit that is no Python is said, and nothing changes; the next one is taken.
        model.write_text(edited + "\n(", encoding="utf-8")
        eventually(lambda: "all stays as it was" in session.output(), "the fault")
        again = edited.replace("+ 40", "+ 50").replace("import time", "import time, os")
        model.write_text(again, encoding="utf-8")
        eventually(lambda: session.output().count("has its new code") == 2, "the second swap")
        ran = "model.py: the module's own lines (import time, os): they have run"
        assert ran in session.output("console")
        session.request(
            "setBreakpoints", source=source, breakpoints=[{"line": after - 2}], sourceModified=True
        )
        session.resume(stopped)
        stopped = session.stopped()
        assert session.top(stopped) == ("model.py", after - 2)
        assert session.evaluate("y[0].item()", stopped) == "52.0"


def test_without_it_nothing_is_swapped_and_a_wrong_word_is_refused(write: Write) -> None:
    program = write("print(1)\n")
    with Session() as session:
        session.initialize()
        refused = session.refused("launch", program=str(program), hotSwap="yes")
        assert refused == '"hotSwap" must be true or false'
