"""Programs that use `tensorpoint` themselves, and clients that attach to them.

The clients are of two kinds: one that speaks to debugpy's own adapter, as any editor does without
us, and one that attaches through `tensorpoint dap`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Write
from tests.protocol.dap import SERVER, STUB, VSCODE, Message, Session, line_of
from tests.protocol.samples import GATE, LAYERS, LAYERS_FOREVER
from tests.protocol.test_attach import Debuggee, debuggee

#: The adapters: programs that are attached to are started by the tests, and afresh.
pytestmark = pytest.mark.usefixtures("resident_process")

DEBUGPY = {**VSCODE, "adapterID": "debugpy"}
STUBBED = {"PYTHONPATH": os.pathsep.join([str(SERVER), str(STUB)])}
WITH_TORCH = {"PYTHONPATH": str(SERVER)}

LISTEN = """\
import tensorpoint
host, port = tensorpoint.listen(("127.0.0.1", 0), on={on!r})
print("port", port, flush=True)
"""
WAIT = "tensorpoint.wait_for_client()\n"
#: Says in each step how many hooks torch has.
TELLS_HOOKS = LAYERS_FOREVER.replace(
    'print("step", step, flush=True)',
    'print("step", step, "hooks", hooks(), flush=True)',
).replace(
    "net = Net()\nend",
    """\
from torch.nn.modules import module


def hooks():
    return len(module._global_forward_hooks) + len(module._global_forward_pre_hooks)


net = Net()
end""",
)


@contextlib.contextmanager
def running(program: Path, env: dict[str, str]) -> Iterator[tuple[Debuggee, int]]:
    """A program that listens, and its port."""
    with debuggee(program, env=env) as process:
        yield process, int(process.expect("port ").split()[1])


@contextlib.contextmanager
def stock(port: int) -> Iterator[Session]:
    """A client that attaches to debugpy's adapter, with nothing of ours between them."""
    with Session(("127.0.0.1", port), client=DEBUGPY) as session:
        session.start("attach", connect={"host": "127.0.0.1", "port": port}, justMyCode=True)
        session.configure(filters=["uncaught"])
        yield session


@contextlib.contextmanager
def ours(port: int, functions: list[Message] | None = None) -> Iterator[Session]:
    """A client that attaches through `tensorpoint dap`."""
    with Session() as session:
        session.start("attach", connect={"host": "127.0.0.1", "port": port})
        session.configure(filters=[], functions=functions)
        yield session


def leave(session: Session) -> None:
    session.request("disconnect", terminateDebuggee=False)
    session.wait_closed()


def test_any_client_of_debugpy_gets_the_stop_with_its_diagnosis(write: Write) -> None:
    program = write(LISTEN.format(on=("nonfinite()",)) + WAIT + GATE)
    with running(program, WITH_TORCH) as (process, port), stock(port) as session:
        stopped = session.stopped()
        assert stopped["reason"] == "exception"
        assert stopped["description"] == "Paused on NaN in the output of gate (Gate), made by log"
        assert "NaN in the output of gate (Gate), made by log, at program.py:" in stopped["text"]
        assert session.places(stopped)[1] == (program.name, line_of(program, "# call gate"))
        # VS Code shows this in place of the text.
        info = session.request("exceptionInfo", threadId=stopped["threadId"])
        assert info["exceptionId"] == "NaN in the output of gate (Gate), made by log"
        assert info["description"] == stopped["text"]
        assert session.evaluate("x.min().item()", stopped) == "-1.0"
        after = session.step("stepOut", stopped)
        assert session.top(after) == (program.name, line_of(program, "# call gate"))
        after = session.step("next", after)
        assert session.top(after) == (program.name, line_of(program, "# after gate"))
        session.resume(after)
        again = session.stopped()
        assert "Step 5" in again["text"]
        session.resume(again)
        session.resume(session.stopped())
        process.expect("step 8")


def test_exceptions_are_told_as_ever_to_a_client_of_debugpy(write: Write) -> None:
    program = write(LISTEN.format(on=()) + WAIT + "raise KeyError('a key')  # raised\n")
    with running(program, STUBBED) as (_, port), stock(port) as session:
        stopped = session.stopped()
        info = session.request("exceptionInfo", threadId=stopped["threadId"])
        assert info["exceptionId"].startswith("KeyError") and info["description"] == "'a key'"


def test_stepping_in_does_not_enter_the_agent(write: Write) -> None:
    program = write(LISTEN.format(on="layer:a") + WAIT + LAYERS)
    with running(program, STUBBED) as (_, port), stock(port) as session:
        stopped = session.stopped()
        assert session.top(stopped) == (program.name, line_of(program, "# call a"))
        assert stopped["reason"] == "function breakpoint"
        stopped = session.step("stepIn", stopped)
        assert session.top(stopped) == (program.name, line_of(program, "# in a block"))


def test_nothing_is_watched_while_no_client_is_attached(write: Write) -> None:
    program = write(LISTEN.format(on=("layer:b",)) + TELLS_HOOKS)
    with running(program, STUBBED) as (process, port):
        assert "hooks 0" in process.runs_on()
        for _ in range(2):
            with stock(port) as session:
                stopped = session.stopped()
                assert session.top(stopped) == (program.name, line_of(program, "# call b"))
                leave(session)
            assert "hooks 0" in process.runs_on()
        assert process.end() == 0


def test_a_client_through_our_adapter_brings_its_own_plan(write: Write) -> None:
    program = write(LISTEN.format(on=("layer:a",)) + TELLS_HOOKS)
    at_a, at_b = line_of(program, "# call a"), line_of(program, "# call b")
    with running(program, STUBBED) as (process, port):
        with ours(port, functions=[{"name": "layer:b"}]) as session:
            for _ in range(2):
                stopped = session.stopped()
                assert session.top(stopped)[1] == at_b
                assert "Tensor event" in session.scopes(stopped)
                session.resume(stopped)
            leave(session)
        assert "hooks 0" in process.runs_on()
        with stock(port) as session:
            stopped = session.stopped()
            assert session.top(stopped)[1] == at_a
            leave(session)
        assert process.end() == 0


def test_a_client_through_our_adapter_may_want_nothing(write: Write) -> None:
    program = write(LISTEN.format(on=("layer:a",)) + TELLS_HOOKS)
    with running(program, STUBBED) as (process, port), ours(port) as session:
        assert "hooks 0" in process.runs_on()
        leave(session)


def test_breakpoint_stops_at_the_next_line(write: Write) -> None:
    program = write(LISTEN.format(on=()) + WAIT + "tensorpoint.breakpoint()\nx = 3  # next line\n")
    with running(program, STUBBED) as (_, port), stock(port) as session:
        stopped = session.stopped()
        assert session.top(stopped) == (program.name, line_of(program, "# next line"))


def test_a_wrong_condition_is_refused_before_anything_listens(write: Write) -> None:
    program = write(
        """\
        import sys, tensorpoint
        try:
            tensorpoint.listen(0, on=["nonfinite() and steps > 1"])
        except ValueError as error:
            print(str(error).replace(chr(10), "|"), "debugpy" in sys.modules, flush=True)
        """
    )
    with debuggee(program, env=STUBBED) as process:
        assert process.process.wait(60) == 0
        said = process.expect("steps")
    assert "did you mean step?|nonfinite() and steps > 1|                ^ False" in said


# `watch` with a client ------------------------------------------------------------------------

WATCHED = (
    LAYERS[: LAYERS.index("net = Net()")]
    + """\
net = Net()
seen = []
for step in range(6):
    with {watch}:
        try:
            net(step)  # call net
        except tensorpoint.TensorpointHit as hit:
            print("hit", hit.stop.line, flush=True)
    net(step)  # unwatched
print("seen", len(seen), flush=True)
"""
)


@pytest.mark.parametrize("adapter", ["stock", "ours"])
def test_a_watch_of_the_programs_stops_in_the_debugger(write: Write, adapter: str) -> None:
    watch = 'tensorpoint.watch("layer:a if step == 4", on="stop")'
    program = write(LISTEN.format(on=()) + WAIT + WATCHED.format(watch=watch))
    client = stock if adapter == "stock" else ours
    with running(program, STUBBED) as (process, port), client(port) as session:
        stopped = session.stopped()
        assert session.top(stopped) == (program.name, line_of(program, "# call a"))
        assert stopped["reason"] == "function breakpoint" and "a (Block)" in stopped["text"]
        session.resume(stopped)
        process.expect("seen 0")


def test_a_watch_of_the_programs_leaves_the_clients_plan_alone(write: Write) -> None:
    watch = 'tensorpoint.watch("layer:a", on=seen.append)'
    program = write(LISTEN.format(on=()) + WAIT + WATCHED.format(watch=watch))
    at_b = [{"name": "layer:b"}]
    with running(program, STUBBED) as (process, port), ours(port, functions=at_b) as session:
        for expected in ["# call net", "# unwatched"] * 6:
            stopped = session.stopped()
            assert session.top(stopped)[1] == line_of(program, "# call b")
            assert session.frames(stopped)[1]["line"] == line_of(program, expected)
            session.resume(stopped)
        process.expect("seen 6")


def test_the_debugger_stops_before_the_exception_is_raised(write: Write) -> None:
    watch = 'tensorpoint.watch("layer:b if step == 6")'
    program = write(LISTEN.format(on=()) + WAIT + WATCHED.format(watch=watch))
    line, at_b = line_of(program, "# call b"), [{"name": "layer:b", "condition": "step == 6"}]
    with running(program, STUBBED) as (process, port), ours(port, functions=at_b) as session:
        stopped = session.stopped()
        assert session.top(stopped)[1] == line
        assert not any("hit" in text for text in process.lines)
        session.resume(stopped)
        process.expect(f"hit {line}")
        process.expect("seen 0")


def test_a_watch_goes_on_when_the_client_leaves(write: Write) -> None:
    program = write(
        LISTEN.format(on=("layer:b",))
        + TELLS_HOOKS.replace(
            "step = 0\n", 'step = 0\ntensorpoint.watch("layer:a", on="warn").__enter__()\n'
        )
    )
    with running(program, STUBBED) as (process, port):
        assert "hooks 2" in process.runs_on()
        with stock(port) as session:
            assert session.top(session.stopped())[1] == line_of(program, "# call b")
            leave(session)
        assert "hooks 2" in process.runs_on()
