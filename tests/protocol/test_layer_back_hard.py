"""Steps back through forwards that catch everything, that can't be run again, or are left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.protocol.dap import Session, eventually

pytestmark = [
    pytest.mark.xdist_group("layer back hard"),
    pytest.mark.usefixtures("resident_process"),
]

AGAIN = Path(__file__).parent / "layers" / "again.py"


@pytest.fixture(scope="module")
def untouched() -> str:
    """What the program prints by itself."""
    command = [sys.executable, str(AGAIN)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def test_a_forward_that_catches_everything_is_left_all_the_same(untouched: str) -> None:
    with Session() as session:
        session.launch(AGAIN, filters=[], functions=[{"name": "layer:Swallows"}])
        session.stopped()
        session.request("setFunctionBreakpoints", breakpoints=[{"name": "layer:Once"}])
        session.console("tp step layer")
        stopped = session.stopped()
        for command in ("stepIn", "stepIn", "next"):
            stopped = session.step(command, stopped)
        assert stopped["description"] == "Entering pair.b (Linear)"
        stopped = session.step("stepBack", stopped)
        assert session.frames(stopped)[0]["name"] == "pair.a (Linear) [entry, replayed]"
        # The live run stands inside of the `try`: leaving the second run there is caught first.
        stopped = session.step("next", stopped)
        assert session.frames(stopped)[0]["name"] == "pair.b (Linear) [entry]"
        stopped = session.step("stepBack", stopped)
        stopped = session.step("stepBack", stopped)
        assert stopped["description"] == "Entering pair (Pair)"
        session.resume(stopped)

        # One that can't be run again says so, and the live stop is shown once more.
        session.stopped()
        session.console("tp step layer")
        stopped = session.step("next", session.step("stepIn", session.stopped()))
        assert stopped["description"] == "Entering b (Linear)"
        stopped = session.step("stepBack", stopped)
        assert stopped["description"] == "Entering b (Linear)"
        assert "running it again raised ValueError: only once" in stopped["text"]
        assert session.frames(stopped)[0]["name"] == "b (Linear) [entry]"
        stopped = session.step("next", stopped)
        assert stopped["description"] == "Leaving (root) (Once)"
        session.request("setFunctionBreakpoints", breakpoints=[])
        session.resume(stopped)
        assert session.exit_code() == 0
        assert session.output("stdout") == untouched
        assert "fault" not in session.output("important")


def test_a_session_that_is_left_in_a_second_run_leaves_the_program_as_it_was(
    untouched: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    program = tmp_path / "program.py"
    source = AGAIN.read_text(encoding="utf-8")
    program.write_text(f"import sys\nsys.stdout = open({str(out)!r}, 'w')\n{source}", "utf-8")
    with Session() as session:
        session.launch(program, filters=[], functions=[{"name": "layer:Swallows"}])
        session.stopped()
        session.console("tp step layer")
        stopped = session.step("next", session.step("stepIn", session.stopped()))
        assert stopped["description"] == "Entering last (Linear)"
        stopped = session.step("reverseContinue", stopped)
        assert "replayed" in session.frames(stopped)[0]["name"]
        session.request("disconnect", terminateDebuggee=False)
        session.wait_closed()
        eventually(lambda: out.read_text(encoding="utf-8") == untouched, "the program's end")
