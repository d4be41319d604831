"""What a client gets at a stop, and what it can do from there."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from tests.conftest import Write
from tests.protocol.dap import STUB, STUBBED, Message, Session, eventually, line_of
from tests.protocol.samples import (
    GATE,
    LAYERS,
    LAYERS_FOREVER,
    LIBRARY,
    THREADS,
    USES_LIBRARY,
)

pytestmark = pytest.mark.usefixtures("resident_process")

STOP_AT_B = [{"name": "layer:b", "condition": "step == 1"}]


def at_b(session: Session, program: str | os.PathLike[str], **arguments: Any) -> Message:
    """Launch LAYERS and return its stop at layer b in step 1."""
    session.launch(str(program), filters=[], functions=STOP_AT_B, **{**STUBBED, **arguments})
    stopped = session.stopped()
    assert stopped["tensorpoint"]["module"] == "b"
    return stopped


# What is said -------------------------------------------------------------------------------------


def test_a_stop_says_what_and_where_in_every_place_a_client_may_look(write: Write) -> None:
    program = write(GATE)
    caller = line_of(program, "# call gate")
    with Session() as session:
        answer = session.launch(program)
        stopped = session.stopped()
        line = stopped["tensorpoint"]["operation"]["line"]
        assert stopped["reason"] == "exception"
        assert stopped["allThreadsStopped"] is True
        assert stopped["description"] == "Paused on NaN in the output of gate (Gate), made by log"
        assert stopped["hitBreakpointIds"] == [answer["breakpoints"][0]["id"]]
        text = stopped["text"]
        for part in (
            "NaN in the output of gate (Gate)",
            f"program.py:{line} in forward",
            "1 of 8 elements not finite (1 NaN)",
            "the first at [1, 3]",
            "the finite ones span 0 to 0",
            "Step 1",
        ):
            assert part in text, text

        info = session.request("exceptionInfo", threadId=stopped["threadId"])
        assert info["exceptionId"] == "NaN in the output of gate (Gate), made by log"
        assert info["description"] == text
        assert info["breakMode"] == "always"
        assert info["details"]["message"] == text

        output = [body for body in session.seen("output") if text in body["output"]]
        assert len(output) == 1
        assert output[0]["category"] == "console"
        assert output[0]["source"]["path"] == str(program) and output[0]["line"] == line

        frames = session.frames(stopped)
        assert [(frame["name"], frame["line"]) for frame in frames] == [
            ("forward (replayed)", line),
            ("forward", caller),
            ("<module>", line_of(program, "# call net")),
        ]
        scopes = session.request("scopes", frameId=frames[0]["id"])["scopes"]
        assert [scope["name"] for scope in scopes] == ["Tensor event", "Locals", "Globals"]
        other = session.request("scopes", frameId=frames[1]["id"])["scopes"]
        assert "Tensor event" not in [scope["name"] for scope in other]
        rows = session.request("variables", variablesReference=scopes[0]["variablesReference"])
        values = {row["name"]: row for row in rows["variables"]}
        assert values["event"]["value"] == "nonfinite.forward"
        assert values["layer"]["value"] == "gate (Gate)"
        assert values["step"]["value"] == "1"
        assert values["NaN"]["value"] == "1"
        assert values["first bad index"]["value"] == "[1, 3]"
        assert values["diagnosis"]["value"] == text
        told = {"variablesReference": scopes[0]["variablesReference"], "name": "output"}
        assert "choose the variable" in session.refused("setVariable", value="3", **told)
        watchable = session.request("dataBreakpointInfo", **told)
        assert watchable["dataId"] is None and "choose the" in watchable["description"]
        # Live objects, which the client can open.
        assert values["output"]["value"] == "f32[2, 4] cpu"
        opened = session.request(
            "variables", variablesReference=values["inputs"]["variablesReference"]
        )
        assert any("f32[2, 4] cpu" in row["value"] for row in opened["variables"])
        # The diagnosis and its scope come again as often as they are asked for.
        assert session.request("scopes", frameId=frames[0]["id"])["scopes"] == scopes
        locals_ = session.request("variables", variablesReference=scopes[1]["variablesReference"])[
            "variables"
        ]
        assert {"self", "x"} <= {row["name"] for row in locals_}
        assert session.evaluate("x.shape[1]", stopped) == "4"

        session.resume(stopped)
        session.stopped()
        assert len(session.seen("stopped")) == 2


def test_the_stop_is_gone_once_the_program_runs_again(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        stopped = at_b(session, program)
        frame = session.frames(stopped)[0]["id"]
        scope = session.request("scopes", frameId=frame)["scopes"][0]
        assert scope["name"] == "Tensor event"
        stepped = session.step("next", stopped)
        assert stepped["reason"] == "step"
        assert "tensorpoint" not in stepped
        frame = session.frames(stepped)[0]["id"]
        scopes = session.request("scopes", frameId=frame)["scopes"]
        assert scopes[0]["name"] == "Locals"
        # A stale reference must not be answered with another stop's rows.
        old = session.answer(
            session.send("variables", variablesReference=scope["variablesReference"])
        )
        assert not (old.get("body") or {}).get("variables")
        session.resume(stepped)
        assert session.exit_code() == 0


def test_clients_may_ask_for_the_stack_in_pieces(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        stopped = at_b(session, program)
        # As VS Code does.
        first = session.request("stackTrace", threadId=stopped["threadId"], startFrame=0, levels=1)[
            "stackFrames"
        ]
        rest = session.request("stackTrace", threadId=stopped["threadId"], startFrame=1, levels=19)[
            "stackFrames"
        ]
        assert len(first) == 1
        scopes = session.request("scopes", frameId=first[0]["id"])["scopes"]
        assert scopes[0]["name"] == "Tensor event"
        assert rest and rest[0]["id"] != first[0]["id"]
        scopes = session.request("scopes", frameId=rest[0]["id"])["scopes"]
        assert scopes[0]["name"] == "Locals"


# Going on -----------------------------------------------------------------------------------------


def test_next_goes_line_by_line_and_out_into_the_callers_code(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        stopped = at_b(session, program)
        assert session.top(stopped)[1] == line_of(program, "# call b")
        # Off the end of a function, `next` shows the call in its caller once more.
        for mark in ("# after b", "# call net", "# after net"):
            stopped = session.step("next", stopped)
            assert session.top(stopped) == ("program.py", line_of(program, mark))
        session.resume(stopped)
        assert session.exit_code() == 0


@pytest.mark.parametrize("just_my_code", [True, False])
def test_step_in_never_shows_the_agent(write: Write, just_my_code: bool) -> None:
    program = write(LAYERS)
    with Session() as session:
        stopped = at_b(session, program, justMyCode=just_my_code)
        if just_my_code:
            stopped = session.step("stepIn", stopped)
            assert session.top(stopped) == ("program.py", line_of(program, "# in a block"))
            stopped = session.step("stepOut", stopped)
        seen: set[str] = set()
        for _ in range(16):
            stopped = session.step("stepIn", stopped)
            seen |= {frame["source"]["path"] for frame in session.frames(stopped)}
        assert not any(f"tensorpoint{os.sep}agent" in file for file in seen), seen
        if just_my_code:
            assert seen == {str(program)}
        session.request("setFunctionBreakpoints", breakpoints=[])
        session.resume(stopped)
        assert session.exit_code() == 0


def test_step_out_comes_back_to_the_caller(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        stopped = at_b(session, program)
        stopped = session.step("stepOut", stopped)
        assert session.top(stopped)[0] == "program.py"
        assert session.top(stopped)[1] in (
            line_of(program, "# call net"),
            line_of(program, "# after net"),
        )
        session.resume(stopped)
        assert session.exit_code() == 0


def test_pause_and_continue_between_stops(write: Write) -> None:
    program = write(LAYERS_FOREVER)
    with Session() as session:
        stopped = at_b(session, program)
        session.resume(stopped)
        for _ in range(3):
            session.request("pause", threadId=1)
            paused = session.stopped()
            assert paused["reason"] == "pause"
            assert "tensorpoint" not in paused
            session.resume(paused)
            session.resume(paused)  # a key that is pressed twice
        program.with_suffix(".end").touch()
        assert session.exit_code() == 0
        assert len(session.seen("stopped")) == 4


def test_pause_at_a_stop_changes_nothing(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        stopped = at_b(session, program)
        session.send("pause", threadId=stopped["threadId"])
        assert session.top(stopped)[1] == line_of(program, "# call b")
        session.resume(stopped)
        # Some debuggers honour the pause afterwards; one stop more is in order, a hang is not.
        eventually(lambda: session.seen("exited") or len(session.seen("stopped")) > 1, "an event")
        if not session.seen("exited"):
            session.resume(session.stopped())
        assert session.exit_code() == 0


@pytest.mark.parametrize("terminate", [True, None], ids=["terminateDebuggee", "launched"])
def test_disconnect_from_a_stop_ends_the_program(write: Write, terminate: bool | None) -> None:
    program = write(LAYERS)
    with Session() as session:
        at_b(session, program)
        session.request("disconnect", **({} if terminate is None else {"terminateDebuggee": True}))
        session.wait_closed()
        session.expect_no_process()
        assert "step 1" not in session.output("stdout")


def test_disconnect_from_a_stop_may_leave_the_program_running(write: Write) -> None:
    program = write(LAYERS.replace("print(", "print(", 1) + "\nopen(__file__ + '.done', 'w')\n")
    with Session() as session:
        at_b(session, program, console="integratedTerminal")
        session.request("disconnect", terminateDebuggee=False)
        session.wait_closed()
        done = program.with_name(program.name + ".done")
        eventually(done.exists, "the program's end")
        session.expect_no_process()


def test_terminate_from_a_stop_ends_the_program(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        at_b(session, program)
        session.request("terminate")
        session.expect("terminated")
        session.request("disconnect")
        session.wait_closed()
        session.expect_no_process()


def test_a_restart_is_a_new_session_that_stops_again(write: Write) -> None:
    # What editors do where `supportsRestartRequest` is not advertised.
    program = write(LAYERS)
    for _ in range(2):
        with Session() as session:
            stopped = at_b(session, program)
            assert not session.capabilities.get("supportsRestartRequest")
            assert stopped["tensorpoint"]["step"] == 1
            session.request("disconnect", restart=True, terminateDebuggee=True)
            session.wait_closed()
            session.expect_no_process()


def test_breakpoints_and_tensorpoints_at_the_same_line_are_two_stops(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        session.launch(
            program,
            filters=[],
            functions=STOP_AT_B,
            breakpoints={str(program): [line_of(program, "# call b")]},
            **STUBBED,
        )
        reasons = []
        for _ in range(5):
            stopped = session.stopped()
            assert session.top(stopped)[1] == line_of(program, "# call b")
            reasons.append(stopped["reason"])
            session.resume(stopped)
        assert reasons == ["breakpoint"] * 2 + ["function breakpoint"] + ["breakpoint"] * 2
        assert session.exit_code() == 0


# Threads ------------------------------------------------------------------------------------------


def test_each_stop_of_several_threads_is_seen_once_and_names_its_thread(write: Write) -> None:
    program = write(THREADS)
    with Session() as session:
        session.launch(
            program,
            filters=[],
            functions=[{"name": "layer:b", "condition": "step == 1"}],
            **STUBBED,
        )
        seen: list[int] = []
        while len(seen) < 3:
            stopped = session.stopped()
            thread = stopped["threadId"]
            seen.append(thread)
            names = {t["id"]: t["name"] for t in session.request("threads")["threads"]}
            assert names[thread].startswith("worker-")
            assert stopped["tensorpoint"]["module"] == "b"
            assert session.top(stopped)[1] == line_of(program, "# call b")
            frame = session.frames(stopped)[0]["id"]
            scopes = session.request("scopes", frameId=frame)["scopes"]
            assert scopes[0]["name"] == "Tensor event"
            info = session.request("exceptionInfo", threadId=thread)
            assert info["exceptionId"] == "layer b (Block)"
            session.resume(stopped)
        assert len(set(seen)) == 3
        assert session.exit_code() == 0
        assert "all [(0, 4), (1, 4), (2, 4)]" in session.output("stdout")
        assert len(session.seen("stopped")) == 3


def test_next_in_a_thread_stays_in_that_thread(write: Write) -> None:
    program = write(THREADS.replace("range(3)]", "range(1)]").replace("Barrier(3)", "Barrier(1)"))
    with Session() as session:
        session.launch(program, filters=[], functions=STOP_AT_B, **STUBBED)
        stopped = session.stopped()
        thread = stopped["threadId"]
        assert thread != 1
        after = session.step("next", stopped)
        assert (after["threadId"], session.top(after)[1]) == (thread, line_of(program, "# after b"))
        session.resume(after)
        assert session.exit_code() == 0


def test_stepping_is_prompt(write: Write) -> None:
    """Nagle's algorithm at pydevd's socket would make 45 ms of each answer."""
    program = write(LAYERS_FOREVER)
    with Session() as session:
        stopped = at_b(session, program)
        taken = []
        for _ in range(40):
            begun = time.monotonic()
            session.request("threads")
            taken.append(time.monotonic() - begun)
        assert min(taken) < 0.030, taken  # a busy machine adds to most of them
        session.request("disconnect", terminateDebuggee=True)
        assert stopped


# Just my code -------------------------------------------------------------------------------------


@pytest.mark.parametrize("just_my_code", [True, False])
def test_a_stop_in_library_code_is_listed_and_next_stays_in_that_file(
    write: Write, just_my_code: bool
) -> None:
    library = write(LIBRARY, "site-packages/library.py")
    program = write(USES_LIBRARY)
    with Session() as session:
        session.launch(
            program,
            filters=[],
            functions=STOP_AT_B,
            justMyCode=just_my_code,
            env={"PYTHONPATH": f"{STUB}{os.pathsep}{library.parent}"},
        )
        stopped = session.stopped()
        stop = stopped["tensorpoint"]
        assert session.top(stopped) == ("library.py", line_of(library, "# library line"))
        assert (stop["file"], stop["user_file"]) == (str(library), str(program))
        assert stop["user_line"] == line_of(program, "# user line")
        assert f"Your code: {program}:{stop['user_line']}" in stopped["text"]
        files = [os.path.basename(frame["source"]["path"]) for frame in session.frames(stopped)]
        if just_my_code:
            assert files == ["library.py", "program.py"]
        for mark in ("# next library line", "# last library line"):
            stopped = session.step("next", stopped)
            assert session.top(stopped) == ("library.py", line_of(library, mark))
            assert session.evaluate("y", stopped) == "3"
        if just_my_code:
            stopped = session.step("stepOut", stopped)
            assert session.top(stopped) == ("program.py", line_of(program, "# user line"))
        session.resume(stopped)
        assert session.exit_code() == 0


def test_next_from_the_last_line_of_library_code_comes_out_in_the_users_code(
    write: Write,
) -> None:
    library = write(LIBRARY, "site-packages/library.py")
    program = write(USES_LIBRARY)
    with Session() as session:
        session.launch(
            program,
            filters=[],
            functions=STOP_AT_B,
            env={"PYTHONPATH": f"{STUB}{os.pathsep}{library.parent}"},
        )
        stopped = session.stopped()
        for _ in range(3):
            stopped = session.step("next", stopped)
        assert session.top(stopped) == ("program.py", line_of(program, "# user line"))
        stopped = session.step("next", stopped)
        assert session.top(stopped) == ("program.py", line_of(program, "# after user line"))
        session.resume(stopped)
        assert session.exit_code() == 0


def test_an_evaluation_never_stops(write: Write) -> None:
    program = write(LAYERS_FOREVER)
    model = "__import__('sys').modules['__main__'].net(5)"
    with Session() as session:
        stopped = at_b(session, program)
        session.request("setFunctionBreakpoints", breakpoints=[{"name": "layer:*"}])
        assert session.evaluate("net(5)", stopped) == "7"  # by the thread that stands there
        assert session.console(model) == "7"  # by a thread of debugpy's
        session.request("setFunctionBreakpoints", breakpoints=[])
        session.resume(stopped)
        session.console("tp on layer:b if step > 1000000")
        assert session.console(model) == "7"
        assert len(session.seen("stopped")) == 1
        program.with_suffix(".end").touch()
        assert session.exit_code() == 0
