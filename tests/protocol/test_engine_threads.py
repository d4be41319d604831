"""Stops on a thread of autograd's, which has no Python frame of the program."""

from __future__ import annotations

from tests.programs.expectations import PROGRAMS
from tests.protocol.dap import Session

PROGRAM = PROGRAMS / "frameworks" / "checkpoint_engine_thread.py"


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
