"""Every program under tests/programs stops where it says, and nowhere else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write
from tests.programs.expectations import ExpectedStop, load, programs
from tests.protocol.dap import Session

pytestmark = pytest.mark.usefixtures("resident_process")

#: Programs of torch alone, a dozen lines each.
_SMALL = ("numeric", "quiet")
#: How many of them one session runs. A session costs 0.8 s of CPU, such a program 0.1.
_TOGETHER = 8
#: Runs the programs that it is given as if each were the only one.
_ONE_BY_ONE = """\
import runpy
import sys

for path in sys.argv[1:]:
    runpy.run_path(path, run_name="__main__")
"""


def sessions() -> list[list[Path]]:
    """The programs that one session each runs: several small ones, or one other."""
    found: list[list[Path]] = []
    for path in programs():
        room = path.parent.name in _SMALL and not load(path).needs
        last = found[-1] if found else []
        if room and 0 < len(last) < _TOGETHER and last[-1].parent == path.parent:
            last.append(path)
        else:
            found.append([path])
    return found


SESSIONS = sessions()


@pytest.mark.parametrize(
    "together", SESSIONS, ids=["-".join(dict.fromkeys((p[0].stem, p[-1].stem))) for p in SESSIONS]
)
def test_program_stops_where_it_says(together: list[Path], write: Write) -> None:
    if "c++" in load(together[0]).needs and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("torch.compile's inductor needs a C++ compiler, and there is none here")
    with Session() as session, session.following_children():
        if len(together) == 1:
            session.launch(together[0])
        else:
            session.launch(write(_ONE_BY_ONE), args=[str(path) for path in together])
        expected = [(path, stop) for path in together for stop in load(path).stops]
        for number, (program, stop) in enumerate(expected, 1):
            stopped = session.stopped()
            _check(session, stopped, stop, program, f"{program.name}, stop {number}")
            session.resume(stopped)
        code = session.exit_code()
        others = [body["text"] for body in session.seen("stopped")[len(expected) :]]
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
    replayed = bool(stop["replayed_frames"])
    _check_operation(stop["operation"], expected.op, expected, text)
    file, line, code, user_line = expected.file, expected.line, expected.code, expected.user_line
    if replayed:  # the stop is at the operation itself
        file, line, code = expected.op_file, expected.op_line, expected.op_code
        user_line = user_line if line is None else line
    assert _place(stop["file"], stop["line"]) == (file, line or stop["line"]), text
    if code is not None:
        assert code in _line(stop["file"], stop["line"]), text
    assert (Path(stop["user_file"]), stop["user_line"]) == (program, user_line), text
    if expected.type is not None:
        assert stop["module_type"] == expected.type, text
    if expected.step is not None:
        assert stop["step"] == expected.step, text
    if expected.argument is not None:
        assert stop["tensor"]["name"] == expected.argument, text
    if expected.sample is not None:
        assert stop["tensor"]["first_index"][0] == expected.sample, text
    assert session.top(stopped) == _place(stop["file"], stop["line"])
    top = session.frames(stopped)[0]["name"]
    assert top.endswith(" (replayed)") == replayed, top


def _check_operation(
    operation: dict[str, Any] | None, name: str | None, expected: ExpectedStop, text: str
) -> None:
    if name is None:
        assert operation is None, text
        return
    assert operation is not None, text
    assert operation["name"].split(".")[1] == name, text
    file, line = operation["file"], operation["line"]
    assert _place(file, line) == (expected.op_file, expected.op_line or line), text
    if expected.op_code is not None:
        assert expected.op_code in _line(file, line), text


def _place(file: str, line: int) -> tuple[str, int]:
    return Path(file).name, line


def _line(file: str, line: int) -> str:
    return Path(file).read_text(encoding="utf-8").splitlines()[line - 1]


RECORDED = [path for path in programs() if any(stop.recorded for stop in load(path).stops)]


@pytest.mark.parametrize("program", RECORDED, ids=[path.stem for path in RECORDED])
def test_precision_op_names_what_cannot_be_run_again(program: Path) -> None:
    with Session() as session:
        session.launch(program, precision="op")
        for number, expected in enumerate(load(program).stops, 1):
            stopped = session.stopped()
            stop = stopped["tensorpoint"]
            name = expected.recorded or expected.op
            _check_operation(stop["operation"], name, expected, f"stop {number}:\n{stop['text']}")
            session.resume(stopped)
        assert session.exit_code() == 0, session.output()
