"""Steps by layers where debugpy's adapter passes on an answer behind the events that follow."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.conftest import Write
from tests.protocol.dap import SERVER, Session, line_of

LATE = Path(__file__).parent / "late_answers"
PROGRAM = """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
x = torch.ones(2)
model(x)  # stop
print("done")
"""


def test_a_stop_may_overtake_the_answer_to_the_step_that_led_there(write: Write) -> None:
    path = write(PROGRAM)
    late = f"PYTHONPATH={LATE}{os.pathsep}{SERVER}"
    command = ["env", late, sys.executable, "-m", "tensorpoint", "dap"]
    with Session(adapter=command) as session:
        session.launch(path, filters=[], breakpoints={str(path): [line_of(path, "# stop")]})
        session.stopped()
        assert session.console("tp step layer") == "stepping by layers"
        stopped = session.stopped()
        names = [session.frames(stopped)[0]["name"]]
        for _ in range(3):
            stopped = session.step("stepIn", stopped)
            names.append(session.frames(stopped)[0]["name"])
        assert names == [
            "(root) (Sequential) [entry]",
            "0 (Linear) [entry]",
            "1 (ReLU) [entry]",
            "(root) (Sequential) [exit]",
        ]
        session.resume(stopped)
        assert session.exit_code() == 0
        said = [event["event"] for event in session.events()]
    # A `tp` line is no step to the client, so it hears of that one only.
    told = [event for event in said if event in ("stopped", "continued")]
    assert told == ["stopped", "continued", *["stopped"] * 4]
