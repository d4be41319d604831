"""What is not ours works as with debugpy alone."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import Write
from tests.protocol.dap import Message, Session, line_of

PROGRAM = """\
def double(x):
    return x + x  # doubles


def work():
    total = 0
    for i in range(10):
        total += double(i)  # loops
    return total  # returns


print("total", work())  # calls
"""

#: The same script for both: what a client sees must be the same.
ADAPTERS = {"ours": None, "debugpy": [sys.executable, "-m", "debugpy.adapter"]}


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)
def test_debugpys_own_features(write: Write, adapter: list[str] | None) -> None:
    program = write(PROGRAM)
    loops, returns = line_of(program, "# loops"), line_of(program, "# returns")
    with Session(adapter=adapter) as session:
        session.start("launch", program=str(program), console="internalConsole")
        source = {"path": str(program)}
        answer = session.request(
            "setBreakpoints",
            source=source,
            breakpoints=[
                {"line": loops, "condition": "i == 4"},
                {"line": returns, "logMessage": "total is {total}"},
            ],
        )
        assert [item["verified"] for item in answer["breakpoints"]] == [True, True]
        session.configure(filters=["uncaught"])
        stopped = session.stopped()
        assert (stopped["reason"], session.top(stopped)[1]) == ("breakpoint", loops)
        frame = session.frames(stopped)[0]["id"]
        scopes = session.request("scopes", frameId=frame)["scopes"]
        assert [scope["name"] for scope in scopes] == ["Locals", "Globals"]
        where = scopes[0]["variablesReference"]
        rows = session.request("variables", variablesReference=where)["variables"]
        assert {row["name"]: row["value"] for row in rows} == {"total": "12", "i": "4"}
        session.request("setVariable", variablesReference=where, name="total", value="1000")
        assert session.evaluate("total", stopped, "hover") == "1000"
        session.request("setExpression", expression="total", value="2000", frameId=frame)
        targets = session.request("completions", text="tot", column=4, frameId=frame)["targets"]
        assert "total" in [target["label"] for target in targets]
        assert session.refused("evaluate", expression="nothing", frameId=frame, context="watch")
        into = session.request("stepInTargets", frameId=frame)["targets"]
        assert [target["label"] for target in into] == ["double(i)"]
        session.request("stepIn", threadId=stopped["threadId"], targetId=into[0]["id"])
        stopped = session.stopped()
        assert session.top(stopped)[1] == line_of(program, "# doubles")
        stopped = session.step("stepOut", stopped)
        stopped = session.step("next", stopped)
        goto = session.request("gotoTargets", source=source, line=returns)["targets"]
        session.request("goto", threadId=stopped["threadId"], targetId=goto[0]["id"])
        stopped = session.expect("stopped", reason="goto")
        assert session.top(stopped)[1] == returns
        assert any(m["path"] == str(program) for m in session.request("modules")["modules"])
        info = session.request("debugpySystemInfo")
        assert info["debugpy"]["version"]
        changed: Message = session.request("setDebuggerProperty", JustMyCodeStepping=True)
        assert changed == {}
        session.request("setBreakpoints", source=source, breakpoints=[])
        session.resume(stopped)
        assert session.exit_code() == 0
        # Up to i == 4: 12, set to 2000, and one more double(4) unless it was skipped by goto.
        assert "total 20" in session.output("stdout")
