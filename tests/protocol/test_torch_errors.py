"""Stops for exceptions of torch's: what is said, at which line, and how it goes on from there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write
from tests.protocol.dap import STUBBED, Session, adapter_environment, line_of
from tests.protocol.pythons import other_pythons
from tests.protocol.samples import LAYERS, RAISES

pytestmark = pytest.mark.usefixtures("resident_process")

MODEL = """\
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 8)
        self.out = nn.Linear(16, 2)

    def forward(self, x):
        h = self.fc(x).relu()
        return self.out(h)  # bad call


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = Head()

    def forward(self, x):
        return self.head(x) + 1  # call head
"""
PROGRAM = (
    MODEL
    + """

torch.set_num_threads(1)
net = Net()
batch = torch.ones(3, 4)  # here it begins
for step in range(2):
    try:
        net(batch)  # call net
    except RuntimeError:
        print("caught")  # caught
net(batch)  # uncaught
"""
)
HEADLINE = "RuntimeError in linear of head.out (Linear)"


def told(line: int, file: str = "program.py") -> list[str]:
    return [
        "mat1 and mat2 shapes cannot be multiplied (3x8 and 16x2)",
        f"In linear of head.out (Linear), called at {file}:{line} in forward: self.out(h)",
        "  h: float32 [3, 8] on cpu",
        "  self.out.weight: float32 [2, 16] on cpu",
        "  self.out.bias: float32 [2] on cpu",
        "Linear takes 16 features; the last size of h is 8.",
    ]


@pytest.mark.parametrize("just_my_code", [True, False])
def test_an_uncaught_exception_stops_at_the_call_with_its_operands(
    write: Write, just_my_code: bool
) -> None:
    program = write(PROGRAM)
    line = line_of(program, "# bad call")
    with Session() as session:
        session.launch(program, filters=["uncaught"], justMyCode=just_my_code)
        stopped = session.stopped()
        assert stopped["reason"] == "exception"
        assert stopped["description"] == f"Paused on {HEADLINE}"
        assert stopped["text"].split("\n") == told(line)
        assert "tensorpoint" not in stopped
        error = stopped["torchError"]
        assert (error["op"], error["module"], error["line"]) == ("linear", "head.out", line)
        assert [item["name"] for item in error["operands"]] == [
            "h",
            "self.out.weight",
            "self.out.bias",
        ]
        info = session.request("exceptionInfo", threadId=stopped["threadId"])
        assert info["exceptionId"] == HEADLINE
        assert info["description"] == info["details"]["message"] == stopped["text"]
        assert info["breakMode"] == "unhandled"
        assert info["details"]["typeName"] == "RuntimeError"
        assert f'program.py", line {line}' in info["details"]["stackTrace"]
        assert stopped["text"] in session.output("console")

        assert session.top(stopped) == ("program.py", line)
        frames = session.frames(stopped)
        own = [f["line"] for f in frames if f["source"]["path"] == str(program)]
        assert own == [line, line_of(program, "# call head"), line_of(program, "# uncaught")]
        assert just_my_code == (len(frames) == len(own))
        assert session.evaluate("tuple(self.out.weight.shape), h.shape[1]", stopped) == (
            "((2, 16), 8)"
        )
        assert "Tensor event" not in session.scopes(stopped)
        session.resume(stopped)
        assert session.exit_code() == 1
        assert len(session.seen("stopped")) == 1


@pytest.mark.parametrize("just_my_code", [True, False])
def test_a_raised_exception_stops_once_at_each_line_of_the_program(
    write: Write, just_my_code: bool
) -> None:
    program = write(PROGRAM)
    lines = [line_of(program, mark) for mark in ("# bad call", "# call head", "# call net")]
    with Session() as session:
        begin = {str(program): [line_of(program, "# here it begins")]}
        session.launch(program, filters=[], breakpoints=begin, justMyCode=just_my_code)
        stopped = session.stopped()
        # Not from the start: importing torch raises exceptions by the hundred.
        session.request("setExceptionBreakpoints", filters=["raised"])
        session.resume(stopped)
        for line in lines:
            stopped = session.stopped()
            assert stopped["text"].split("\n") == told(lines[0])
            assert session.top(stopped) == ("program.py", line)
            session.resume(stopped)
        # Steps go on from the line that is shown.
        stopped = session.stopped()
        assert session.top(stopped) == ("program.py", lines[0])
        session.request("setExceptionBreakpoints", filters=[])
        stopped = session.step("stepOut", stopped)
        assert stopped["reason"] == "step" and "torchError" not in stopped
        if just_my_code:
            assert session.top(stopped)[1] in lines
            seen = set[int]()
            caught = line_of(program, "# caught")
            while caught not in seen and len(seen) < 6:
                stopped = session.step("next", stopped)
                seen.add(session.top(stopped)[1])
            assert caught in seen
        session.resume(stopped)
        assert session.exit_code() == 1


@pytest.mark.parametrize("kind", ["uncaught", "raised"])
def test_the_models_library_file_is_shown_although_it_is_not_my_code(
    write: Write, kind: str
) -> None:
    library = write(MODEL, "site-packages/library.py")
    program = write(
        """\
        import torch
        from library import Net

        net = Net()
        print("begin")  # here it begins
        try:
            net(torch.ones(3, 4))  # call net
        except ZeroDivisionError:
            print("after")
        """
    )
    line = line_of(library, "# bad call")
    with Session() as session:
        session.launch(
            program,
            filters=[],
            breakpoints={str(program): [line_of(program, "# here it begins")]},
            env={"PYTHONPATH": str(library.parent)},
        )
        stopped = session.stopped()
        session.request("setExceptionBreakpoints", filters=[kind])
        session.resume(stopped)
        stopped = session.stopped()
        expected = told(line, "library.py")
        expected.append(f"Your code: {program}:{line_of(program, '# call net')}.")
        assert stopped["text"].split("\n") == expected
        assert session.places(stopped) == [
            ("library.py", line),
            ("library.py", line_of(library, "# call head")),
            ("program.py", line_of(program, "# call net")),
        ]
        assert session.evaluate("h.shape[1]", stopped) == "8"
        session.resume(stopped)
        assert session.exit_code() == 1
        assert len(session.seen("stopped")) == 2, "library code is not stopped in otherwise"


@pytest.mark.parametrize("filters", [["uncaught"], ["raised"], ["userUnhandled"]])
def test_other_exceptions_are_debugpys_as_ever(write: Write, filters: list[str]) -> None:
    program = write("import torch\n" + RAISES)
    with Session() as session:
        session.launch(program, filters=filters, **STUBBED)
        expected = [("ValueError", "nobody catches this")]
        if filters == ["raised"]:
            expected = [("KeyError", "'caught'"), *expected]
        for name, text in expected:
            stopped = session.stopped()
            assert stopped["text"].startswith(name) and stopped["description"] == text
            assert "torchError" not in stopped
            session.resume(stopped)


def test_with_tensorpoints_armed_the_step_is_said_as_well(write: Write) -> None:
    program = write(PROGRAM)
    with Session() as session:
        session.launch(program, filters=["uncaught", "nonfinite"])
        stopped = session.stopped()
        assert stopped["text"].split("\n") == [
            *told(line_of(program, "# bad call")),
            "Step 2 (forward calls of Net, from 0).",
        ]


def test_a_fault_of_ours_leaves_debugpys_own_stop(write: Write) -> None:
    program = write(
        """\
        import sys

        import torch

        sys.modules["_tensorpoint.agent.torch_errors"].describe = lambda *_: 1 / 0
        torch.ones(2) @ torch.ones(3)  # fails
        """
    )
    with Session() as session:
        session.launch(program, filters=["uncaught"])
        stopped = session.stopped()
        assert stopped["text"] == "RuntimeError"
        assert session.top(stopped) == ("program.py", line_of(program, "# fails"))
        assert "a fault while describing an exception: ZeroDivisionError" in session.output()
        session.resume(stopped)
        assert session.exit_code() == 1


def run(program: Path, *arguments: str) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "tensorpoint", "run", *arguments, str(program)],
        env=adapter_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_tensorpoint_run_prints_it_after_the_traceback(write: Write) -> None:
    program = write(PROGRAM)
    done = run(program)
    assert done.returncode == 1
    assert done.stdout == "caught\ncaught\n"
    _, _, after = done.stderr.partition("RuntimeError: mat1 and mat2")
    expected = told(line_of(program, "# bad call"))
    assert "\ntensorpoint: " + "\n".join(expected[1:]) in after
    assert done.stderr.count("tensorpoint: In ") == 1


def test_tensorpoint_run_adds_nothing_to_other_exceptions(write: Write) -> None:
    program = write(
        """\
        import threading

        import torch

        def work():
            torch.ones(2) @ torch.ones(3)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        raise ValueError("the program's own")
        """
    )
    done = run(program)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ValueError: the program's own")
    assert done.stderr.count("tensorpoint: In @") == 1  # that of the thread


ARITY = LAYERS.replace("self.b(y)  # call b", "self.b(y, y)  # call b")


@pytest.mark.parametrize("just_my_code", [True, False])
@pytest.mark.parametrize("python", other_pythons().values(), ids=other_pythons())
def test_the_line_is_the_programs_on_every_python(
    write: Write, python: str, just_my_code: bool
) -> None:
    program = write(ARITY.replace("net = Net()", 'net = Net()\nprint("begin")'))
    lines = [line_of(program, mark) for mark in ("# call b", "# call net")]
    with Session() as session:
        session.launch(
            program,
            filters=[],
            breakpoints={str(program): [line_of(program, "begin")]},
            justMyCode=just_my_code,
            python=python,
            **STUBBED,
        )
        stopped = session.stopped()
        session.request("setExceptionBreakpoints", filters=["raised", "uncaught"])
        session.resume(stopped)
        for line in [*lines, lines[0]]:  # raised at two lines, then uncaught
            stopped = session.stopped()
            assert stopped["description"] == "Paused on TypeError in forward of b (Block)"
            assert f"program.py:{lines[0]} in forward: self.b(y, y)" in stopped["text"]
            assert session.top(stopped) == ("program.py", line)
            if line == lines[1]:  # not in the standard library's frames around the program
                session.request("setExceptionBreakpoints", filters=["uncaught"])
            session.resume(stopped)
        assert session.exit_code() == 1
