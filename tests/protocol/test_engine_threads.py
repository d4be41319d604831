"""Stops on a thread of autograd's, which has no Python frame of the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.expectations import PROGRAMS
from tests.protocol.dap import Session, line_of

pytestmark = pytest.mark.usefixtures("resident_process")

PROGRAM = PROGRAMS / "frameworks" / "checkpoint_engine_thread.py"
ENGINE = Path(__file__).parent / "layers" / "engine.py"


def test_a_step_from_there_goes_on_in_the_thread_whose_line_is_shown() -> None:
    with Session() as session:
        session.launch(PROGRAM)
        stopped = session.stopped()
        name, line = session.top(stopped)
        assert stopped["tensorpoint"]["event"] == "nonfinite.backward"
        assert stopped["threadId"] != 1
        session.request("next", threadId=stopped["threadId"])
        after = session.stopped()
        assert (after["reason"], after["threadId"]) == ("step", 1)
        assert session.top(after) == (name, line + 1)
        session.request("next", threadId=1)
        assert session.top(session.stopped()) == (name, line + 2)
        session.request("continue", threadId=1)
        assert session.exit_code() == 0


def test_lines_of_an_autograd_function_are_stopped_at_and_stepped_through_there() -> None:
    line, waits = line_of(ENGINE, "# in its backward"), line_of(ENGINE, "# waits here")
    with Session() as session:
        session.launch(ENGINE, filters=[], breakpoints={str(ENGINE): [line]})
        stopped = session.stopped()
        assert stopped["reason"] == "breakpoint" and stopped["threadId"] != 1
        threads = {item["id"]: item["name"] for item in session.request("threads")["threads"]}
        assert threads[stopped["threadId"]] == "autograd cpu"
        places = session.places(stopped)
        assert places[0] == (ENGINE.name, line)
        assert (ENGINE.name, waits) in places  # the stack of the thread that waits
        waiting = session.frames(stopped)[places.index((ENGINE.name, waits))]
        value = session.request(
            "evaluate", expression="type(model).__name__", frameId=waiting["id"], context="watch"
        )
        assert value["result"] == "'Net'"
        stopped = session.step("next", stopped)
        assert session.top(stopped) == (ENGINE.name, line + 1)
        stopped = session.step("next", stopped)
        while session.top(stopped)[1] == line + 1:  # the return of the function
            stopped = session.step("next", stopped)
        assert (stopped["threadId"], session.top(stopped)) == (1, (ENGINE.name, waits + 1))
        session.resume(stopped)
        assert session.exit_code() == 0


def test_layers_are_stepped_through_in_a_backward_pass_there() -> None:
    with Session() as session:
        session.launch(ENGINE, filters=[], functions=[{"name": "layer:Net"}])
        session.stopped()
        session.console("tp step layer")
        stopped = session.step("stepOut", session.stopped())
        assert stopped["description"] == "Leaving (root) (Net)"
        # The forward is run again inside of the pass, a layer deeper than the root.
        stopped = session.step("stepIn", session.step("stepIn", stopped))
        assert stopped["description"] == "Entering body (Body)"
        assert session.frames(stopped)[0]["name"] == "body (Body) [entry, recomputed for backward]"
        session.request("setFunctionBreakpoints", breakpoints=[{"name": "layer:head@backward"}])
        session.request("continue", threadId=stopped["threadId"])
        stopped = session.stopped()
        assert stopped["tensorpoint"]["event"] == "layer.backward"
        assert stopped["threadId"] != 1
        assert session.top(stopped) == (ENGINE.name, line_of(ENGINE, "# waits here"))
        # Nothing was hooked in that forward: the gradients of parameters show the way.
        session.console("tp step layer")
        stopped = session.stopped()
        assert stopped["description"] == "Entering (root) (Net) in backward"
        stopped = session.step("stepIn", stopped)
        assert stopped["description"] == "Entering head (Linear) in backward"
        stopped = session.step("next", stopped)
        assert stopped["description"] == "Entering body (Body) in backward"
        stopped = session.step("stepIn", stopped)
        assert stopped["description"] == "Entering body.linear (Linear) in backward"
        frames = session.frames(stopped)
        outer = ["body (Body) [backward]", "(root) (Net) [backward]"]
        assert [frame["name"] for frame in frames[1:]] == outer
        assert "by the gradient of" in frames[0]["name"]
        session.request("setFunctionBreakpoints", breakpoints=[])
        session.request("continue", threadId=stopped["threadId"])
        assert session.exit_code() == 0
