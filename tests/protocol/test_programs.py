"""Every program under tests/programs stops where it says, and nowhere else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.programs.expectations import ExpectedStop, load, programs
from tests.protocol.dap import Session

PROGRAMS = programs()


@pytest.mark.parametrize("program", PROGRAMS, ids=[path.stem for path in PROGRAMS])
def test_program_stops_where_it_says(program: Path) -> None:
    expectation = load(program)
    if "c++" in expectation.needs and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("torch.compile's inductor needs a C++ compiler, and there is none here")
    with Session() as session, session.following_children():
        session.launch(program)
        for number, expected in enumerate(expectation.stops, 1):
            stopped = session.stopped()
            _check(session, stopped, expected, program, f"stop {number}")
            session.resume(stopped)
        code = session.exit_code()
        others = [body["text"] for body in session.seen("stopped")[len(expectation.stops) :]]
        assert not others, f"stopped once more: {others}"
        assert code == 0, session.output()
        assert "fault" not in session.output("important"), session.output("important")


def _check(
    session: Session, stopped: dict[str, Any], expected: ExpectedStop, program: Path, which: str
) -> None:
    stop = stopped["tensorpoint"]
    text = f"{which}:\n{stop['text']}"
    assert stopped["reason"] == "exception"
    assert (stop["event"], stop["module"]) == (expected.event, expected.module), text
    assert Path(stop["file"]).name == expected.file, text
    if expected.line is not None:
        assert stop["line"] == expected.line, text
    if expected.code is not None:
        lines = Path(stop["file"]).read_text(encoding="utf-8").splitlines()
        assert expected.code in lines[stop["line"] - 1], text
    assert (Path(stop["user_file"]), stop["user_line"]) == (program, expected.user_line), text
    if expected.type is not None:
        assert stop["module_type"] == expected.type, text
    if expected.step is not None:
        assert stop["step"] == expected.step, text
    if expected.argument is not None:
        assert stop["tensor"]["name"] == expected.argument, text
    if expected.sample is not None:
        assert stop["tensor"]["first_index"][0] == expected.sample, text
    assert session.top(stopped) == (Path(stop["file"]).name, stop["line"])
