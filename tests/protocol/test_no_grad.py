"""Parameters without a gradient: the stop, the console's report, and `tensorpoint run`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import Write
from tests.protocol.dap import Session, adapter_environment, line_of

pytestmark = pytest.mark.usefixtures("resident_process")

PROGRAM = """\
import torch
from torch import nn

torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        h = self.enc(x)
        return self.head(h.detach())  # detached


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    net(torch.ones(3, 4)).sum().backward()  # backward
    optimizer.step()  # step
    print("step", step)
"""
DETACHED = "its output is in the graph, but the loss does not depend on it"


def test_it_stops_at_the_optimizers_step_and_says_why(write: Write) -> None:
    program = write(PROGRAM)
    with Session() as session:
        session.launch(program, filters=[], tensorpoints=['no_grad("*")'])
        stopped = session.stopped()
        assert stopped["description"] == "Paused on no gradient for weight and bias of enc (Linear)"
        assert stopped["tensorpoint"]["event"] == "no_grad"
        assert session.top(stopped) == ("program.py", line_of(program, "# step"))
        assert f"enc.weight, enc.bias: {DETACHED}" in stopped["text"]
        assert f"program.py:{line_of(program, '# detached')}: return" in stopped["text"]
        scope = session.scopes(stopped)["Tensor event"]
        rows = session.request("variables", variablesReference=scope)["variables"]
        assert {"parameters", "optimizer"} <= {row["name"] for row in rows}
        head, reason = session.console("tp nograd").split("\n")
        assert head == "at SGD.step: 2 of 4 parameters that require a gradient got none"
        assert reason.startswith(f"enc.weight, enc.bias: {DETACHED}")
        assert session.console('tp nograd "head*"').startswith("at SGD.step: 0 of 4")
        session.resume(stopped)
        assert session.exit_code() == 0
        assert len(session.seen("stopped")) == 1


def test_the_console_reports_without_the_watch_and_sets_it(write: Write) -> None:
    program = write(PROGRAM)
    with Session() as session:
        session.launch(
            program,
            filters=["nonfinite"],
            breakpoints={str(program): [line_of(program, "# step")]},
        )
        stopped = session.stopped()
        assert session.console("tp nograd").split("\n") == [
            "at the moment 2 of 4 parameters that require a gradient have none",
            "enc.weight",
            "enc.bias",
            'why is not recorded: tp on no_grad("*")',
        ]
        session.console("tp on no_grad() and step > 100")
        assert "no optimizer step since" in session.console("tp nograd")
        session.resume(stopped)
        stopped = session.stopped()
        assert stopped["reason"] == "breakpoint"
        assert "enc.weight, enc.bias: " in session.console("tp nograd")


def test_run_reports_it(write: Write) -> None:
    program = write(PROGRAM)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tensorpoint", "run", "--json"),
            *("--on", 'no_grad("enc")', str(program)),
        ],
        env=adapter_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    (stop,) = map(json.loads, done.stdout.splitlines())
    assert (stop["event"], stop["module"], stop["step"], stop["value"]) == ("no_grad", "enc", 0, 2)
    assert DETACHED in stop["text"]
