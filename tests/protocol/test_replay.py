"""A stop at the operation itself, in a second run of the forward."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.protocol.dap import DEADLINE, Session, free_port, line_of
from tests.protocol.test_attach import attach, debuggee

pytestmark = [pytest.mark.xdist_group("replay"), pytest.mark.usefixtures("resident_process")]

PROGRAM = """\
import torch
from torch import nn


class Ratio(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        scaled = x * self.scale
        total = scaled.sum(-1, keepdim=True)
        share = scaled / total
        return share.clamp(max=2.0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.1)
        self.ratio = Ratio()
        self.out = nn.Linear(4, 1)

    def forward(self, x, blank):
        h = self.drop(self.norm(x))
        with torch.no_grad():
            h = self.ratio(h * 0 if blank else h)
        return self.out(h.nan_to_num())


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(6, 4)
    output = net(x, blank=step == 2)
    loss = output.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
state = [*net.state_dict().values(), torch.get_rng_state().sum()]
print("result", net.ratio.calls, [value.double().sum().item() for value in state])
"""
LINES = {line.strip(): number for number, line in enumerate(PROGRAM.splitlines(), 1)}
DIVISION = LINES["share = scaled / total"]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "ratio.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def result_of(session: Session) -> str:
    assert session.exit_code() == 0, session.output()
    (line,) = [line for line in session.output("stdout").splitlines() if "result" in line]
    return line


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the program prints with nothing watched."""
    path = tmp_path_factory.mktemp("plain") / "ratio.py"
    path.write_text(PROGRAM, encoding="utf-8")
    with Session() as session:
        session.launch(path, filters=[])
        return result_of(session)


def test_the_frames_on_top_are_the_second_runs_and_the_rest_the_programs(program: Path) -> None:
    with Session() as session:
        session.launch(program)
        stopped = session.stopped()
        stop = stopped["tensorpoint"]
        assert stop["operation"]["name"] == "aten.div.Tensor"
        assert [operand["name"] for operand in stop["operation"]["operands"]] == ["scaled", "total"]
        assert "0/0 is NaN" in stop["operation"]["cause"]
        frames = session.frames(stopped)
        replayed = [frame for frame in frames if frame["name"].endswith(" (replayed)")]
        # The module counts its calls, so the whole model was run again.
        assert frames[: len(replayed)] == replayed
        assert [frame["line"] for frame in frames] == [
            DIVISION,
            LINES["h = self.ratio(h * 0 if blank else h)"],
            LINES["h = self.ratio(h * 0 if blank else h)"],
            LINES["output = net(x, blank=step == 2)"],
        ]
        assert len(replayed) == 2
        # Editors ask for the top frame alone first, and for the rest then.
        thread = stopped["threadId"]
        first = session.request("stackTrace", threadId=thread, startFrame=0, levels=1)
        rest = session.request("stackTrace", threadId=thread, startFrame=1, levels=20)
        names = [frame["name"] for frame in (*first["stackFrames"], *rest["stackFrames"])]
        assert names[: len(frames)] == [frame["name"] for frame in frames]


def test_the_way_to_the_value_is_listed_below_the_stack_and_in_the_console(program: Path) -> None:
    with Session() as session:
        session.launch(program)
        stopped = session.stopped()
        *_, label, clamp = session.all_frames(stopped)
        assert label["presentationHint"] == "label"
        assert (clamp["name"], clamp["presentationHint"]) == (
            "aten.clamp.default in ratio",
            "subtle",
        )
        assert clamp["source"]["path"] == str(program)
        assert session.request("scopes", frameId=clamp["id"]) == {"scopes": []}
        refusal = session.refused("evaluate", expression="x", frameId=clamp["id"], context="watch")
        assert "that operation is over" in refusal
        thread = stopped["threadId"]
        whole = session.request("stackTrace", threadId=thread)
        pages = [
            session.request("stackTrace", threadId=thread, startFrame=start, levels=2)
            for start in range(0, whole["totalFrames"] + 1, 2)
        ]
        assert [page["totalFrames"] for page in pages] == [whole["totalFrames"]] * len(pages)
        ids = [frame["id"] for page in pages for frame in page["stackFrames"]]
        assert ids == [frame["id"] for frame in whole["stackFrames"]]
        title, line, end = [
            body
            for body in session.seen("output")
            if body.get("group") or body["output"].startswith("  aten.clamp")
        ]
        assert (title["group"], end["group"]) == ("startCollapsed", "end")
        assert (line["source"]["path"], line["line"]) == (str(program), clamp["line"])


def test_the_console_has_autograd_and_the_locals_there(program: Path, untouched: str) -> None:
    with Session() as session:
        session.launch(program)
        stopped = session.stopped()
        assert session.evaluate("'share' in locals()", stopped) == "False"
        assert session.evaluate("total.flatten().tolist()", stopped).startswith("[0.0")
        # Of the program's own: it calls this layer without gradients, which is so here as well.
        assert session.evaluate("torch.is_grad_enabled()", stopped) == "False"
        session.evaluate("with torch.enable_grad(): (x * self.scale).sum().backward()", stopped)
        assert session.evaluate("self.scale.grad is not None", stopped) == "True"
        session.evaluate("self.scale.grad = None", stopped)
        assert session.evaluate("self.calls", stopped) == "3"
        session.resume(stopped)
        assert result_of(session) == untouched


def test_steps_go_on_in_the_second_run_and_then_in_the_programs_own(
    program: Path, untouched: str
) -> None:
    with Session() as session:
        session.launch(program)
        stopped = session.stopped()
        places = []
        for command in ("next", "stepOut", "next"):
            stopped = session.step(command, stopped)
            places.append(session.top(stopped)[1])
        assert places[0] == DIVISION + 1
        assert places[1] in (
            LINES["h = self.ratio(h * 0 if blank else h)"],
            LINES["return self.out(h.nan_to_num())"],
        )
        session.resume(stopped)
        assert result_of(session) == untouched


def test_a_line_breakpoint_hits_in_the_second_run_that_stops_and_in_no_other(
    program: Path, untouched: str
) -> None:
    line = LINES["total = scaled.sum(-1, keepdim=True)"]
    with Session() as session:
        session.launch(program, breakpoints={str(program): [line]}, filters=["nonfinite"])
        hits = []
        for _ in range(6):
            stopped = session.stopped()
            calls = session.evaluate("self.calls", stopped)
            hits.append((stopped["reason"], session.top(stopped)[1], calls))
            session.resume(stopped)
        assert hits == [
            ("breakpoint", line, "1"),
            ("breakpoint", line, "2"),
            ("breakpoint", line, "3"),
            ("breakpoint", line, "3"),  # the second run, on its way to the operation
            ("exception", DIVISION, "3"),
            ("breakpoint", line, "4"),
        ]
        assert result_of(session) == untouched


def test_the_program_can_be_ended_there(program: Path) -> None:
    with Session() as session:
        session.launch(program)
        thread = session.stopped()["threadId"]
        assert session.refused("goto", threadId=thread, targetId=99)
        info = session.request("exceptionInfo", threadId=thread)  # it is at that stop still
        assert "tensorpoint" in info["details"]["fullTypeName"]
        session.request("terminate")
        session.expect("exited")


def test_nothing_is_run_again_where_precision_op_has_recorded_it(
    program: Path, untouched: str
) -> None:
    with Session() as session:
        session.launch(program, precision="op")
        stopped = session.stopped()
        stop = stopped["tensorpoint"]
        assert stop["operation"]["line"] == DIVISION
        assert stop["replayed_frames"] == []
        assert session.top(stopped)[1] == LINES["h = self.ratio(h * 0 if blank else h)"]
        session.resume(stopped)
        assert result_of(session) == untouched


def test_an_unknown_precision_is_refused_with_what_there_is(program: Path) -> None:
    with Session() as session:
        session.initialize()
        reason = session.refused("launch", program=str(program), precision="layer")
        assert reason == '"precision" must be "module" or "op"'


def test_the_scope_has_cause_cure_and_operands(program: Path) -> None:
    with Session() as session:
        session.launch(program)
        stopped = session.stopped()
        reference = session.scopes(stopped)["Tensor event"]
        rows = {
            row["name"]: row["value"]
            for row in session.request("variables", variablesReference=reference)["variables"]
        }
        assert rows["operation"] == "aten.div.Tensor"
        assert rows["cause"].startswith("0/0 is NaN")
        assert "cure" in rows
        assert rows["operand total"].startswith("float32[6, 1] cpu")
        info = session.request("exceptionInfo", threadId=stopped["threadId"])
        assert rows["cause"] in info["description"]
        assert json.dumps(stopped["tensorpoint"])


WRITER = """\
import logging
import os
from pathlib import Path

import torch
from torch import nn

here = Path(__file__).parent
logging.basicConfig(filename=here / "forward.log", format="%(message)s", level=logging.INFO)
pipe = os.pipe()[1]


class Writer(nn.Module):
    def forward(self, x):
        logging.info("forward")
        (here / "last.txt").write_text(str(x.sum().item()))
        os.write(pipe, b"forward")
        return torch.log(x)


model = nn.Sequential(nn.Flatten(), Writer())
for step in range(3):
    model(torch.full((2, 2), 1.0 - step))
"""


def test_what_the_forward_writes_when_it_is_run_again_is_told(tmp_path: Path) -> None:
    path = tmp_path / "writer.py"
    path.write_text(WRITER, encoding="utf-8")
    with Session() as session:
        session.launch(path)
        stopped = session.stopped()
        log = tmp_path / "forward.log"
        assert (
            "To find it the forward was run again, with what it does besides: "
            f"writing {log}, writing {tmp_path / 'last.txt'}, os.write."
        ) in stopped["tensorpoint"]["text"]
        # Of two steps, and of the second once to find the operation and once to stop there.
        assert log.read_text(encoding="utf-8") == "forward\n" * 4
        session.resume(stopped)
        assert session.exit_code() == 0


# How often it is run -----------------------------------------------------------------------------

#: What it counts calls with is of the program, not of the model: that isn't put back.
COUNTED = """\
import json

import torch
from torch import nn

calls = []
passed = {}


class Counted(nn.Module):
    def forward(self, x):
        calls.append(type(self).__name__)
        return self.compute(x)


class Log(Counted):
    def compute(self, x):
        return torch.log(x)


class Random(Counted):
    def compute(self, x):
        return torch.log(x * (torch.rand(x.shape) < 2))


class Counting(Counted):
    count = 0

    def compute(self, x):
        self.count = self.count + 1
        return torch.log(x)


class Dependent(Counted):
    def compute(self, x):
        return torch.log(x * passed.pop("factor"))


class Slope(Counted):
    def compute(self, x):
        return (x * 1.0).sqrt()


class Net(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.linear, self.inner = nn.Linear(2, 2), inner

    def forward(self, x):
        passed["factor"] = 1.0
        return self.inner(self.linear(x) * 0 + x.sum())


for kind in (Log, Random, Counting, Dependent, Slope):
    net = Net(kind())
    for total in (1.0, 1.0, 1.0, 0.0):
        net(torch.tensor([[total, 0.0]])).sum().backward()
print(json.dumps({kind: calls.count(kind) for kind in calls}))
"""


def test_three_forwards_at_most_are_run_to_find_it(tmp_path: Path) -> None:
    path = tmp_path / "counted.py"
    path.write_text(COUNTED, encoding="utf-8")
    with Session() as session:
        session.launch(path)
        for op in ("log", "log", "log", "log", "div"):
            stopped = session.stopped()
            assert stopped["tensorpoint"]["operation"]["name"].split(".")[1] == op
            session.resume(stopped)
        assert session.exit_code() == 0, session.output()
        calls = json.loads(session.output("stdout"))
    own = 4
    # One to find it and one to stop there; a gradient has no line in a forward to stop at. What
    # can't be run again by itself is, with the model around it, after it has been tried.
    wanted = {"Log": 2, "Random": 3, "Counting": 2, "Dependent": 3, "Slope": 1}
    assert {kind: count - own for kind, count in calls.items()} == wanted


# What can't be found by it -----------------------------------------------------------------------

DRAWING = """\
import torch
from torch import nn

generator = torch.Generator().manual_seed(0)  # no module holds it


class Drawing(nn.Module):
    def forward(self, x):
        noise = torch.rand(x.shape, generator=generator) + 1
        return torch.log(x * noise)


class Other(nn.Module):
    def forward(self, x):
        return x / (x - x)


drawing, other = nn.Sequential(nn.Flatten(), Drawing()), nn.Sequential(nn.Flatten(), Other())
for step in range(4):
    drawing(torch.full((2, 2), -1.0 if step in (1, 3) else 1.0))
other(torch.ones(2, 2))
"""


def test_after_one_that_is_not_reproducible_each_operation_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "drawing.py"
    path.write_text(DRAWING, encoding="utf-8")
    with Session() as session:
        session.launch(path)
        first = session.stopped()
        stop = first["tensorpoint"]
        assert (stop["operation"], stop["module"], stop["step"]) == (None, "1", 1)
        assert "it draws from a generator that no module holds" in stop["text"]
        assert "From now on each operation is recorded" in stop["text"]
        session.resume(first)
        # The same again, and another one, which could be run again: both are known already.
        for module, op, text in (("1", "log", "torch.log("), ("1", "div", "x / (x - x)")):
            stopped = session.stopped()
            stop = stopped["tensorpoint"]
            assert stop["operation"]["name"].split(".")[1] == op
            assert (stop["module"], stop["operation"]["line"]) == (module, line_of(path, text))
            assert stop["operation"]["cause"]
            assert stop["replayed_frames"] == []
            session.resume(stopped)
        assert session.exit_code() == 0, session.output()


# Ways to leave it --------------------------------------------------------------------------------


def test_exceptions_in_the_console_and_behind_the_operation_leave_no_trace(
    program: Path, untouched: str
) -> None:
    with Session() as session:
        session.launch(program)
        stopped = session.stopped()
        frame = session.frames(stopped)[0]["id"]
        for expression in (
            "torch.rand(3) @ torch.rand(4)",
            "self.scale.data.mul_(3) and nothing",
            "setattr(self, 'calls', 99) or self.missing",
            "torch.nn.functional.dropout(x).sum() / None",
        ):
            refused = session.refused(
                "evaluate", expression=expression, frameId=frame, context="repl"
            )
            assert "Error" in refused, refused
        # The rest of the second run raises: the program's own goes on.
        session.evaluate("setattr(net, 'out', None)", stopped)
        session.evaluate("self.scale.data.div_(3)", stopped)
        session.resume(stopped)
        assert result_of(session) == untouched


def test_stepping_out_of_the_second_run_ends_it(program: Path, untouched: str) -> None:
    with Session() as session:
        session.launch(program)
        stopped = session.stopped()
        frames = [session.frames(stopped)]
        while any(frame["name"].endswith(" (replayed)") for frame in frames[-1]):
            stopped = session.step("stepOut", stopped)
            frames.append(session.frames(stopped))
        assert session.evaluate("net.ratio.calls", stopped) == "3"
        session.resume(stopped)
        assert result_of(session) == untouched


WAIT = """\
import debugpy

debugpy.listen({port})
print("listening", flush=True)
debugpy.wait_for_client()
"""


def test_a_client_that_leaves_there_leaves_the_program_as_it_was(
    program: Path, untouched: str
) -> None:
    port = free_port()
    program.write_text(WAIT.format(port=port) + PROGRAM, encoding="utf-8")
    with debuggee(program, env={"PYTHONUNBUFFERED": "1"}) as running:
        running.expect("listening")
        with Session() as session:
            attach(session, host="127.0.0.1", port=port)
            stopped = session.stopped()
            assert session.frames(stopped)[0]["name"].endswith(" (replayed)")
            session.request("disconnect", terminateDebuggee=False)
            session.wait_closed()
        assert running.expect("result").strip() == untouched.strip()
        assert running.process.wait(DEADLINE) == 0
