"""Stops in a model's library file with `justMyCode` on: the file is listed and stepped through."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.expectations import PROGRAMS, load
from tests.protocol.dap import Message, Session

pytestmark = pytest.mark.usefixtures("resident_process")

FRAMEWORKS = PROGRAMS / "frameworks"


def place(session: Session, stopped: Message) -> tuple[Path, int]:
    """The top frame's file and line."""
    frame = session.frames(stopped)[0]
    return Path(frame["source"]["path"]), frame["line"]


@pytest.mark.parametrize(
    ("name", "lines"),
    # Both stops are on the last line but one of a function.
    [("hf_llama_fp16", 1), ("hf_t5_fp16", 1)],
)
def test_next_walks_through_the_modeling_file_and_comes_out_in_the_script(
    name: str, lines: int
) -> None:
    program = FRAMEWORKS / f"{name}.py"
    (expected, *_) = load(program).stops
    with Session() as session:
        session.launch(program, justMyCode=True)
        stopped = session.stopped()
        file, line = place(session, stopped)
        assert file.name == expected.file
        assert "site-packages" in file.parts
        assert expected.op_code is not None
        source = file.read_text(encoding="utf-8").splitlines()
        assert expected.op_code in source[line - 1]
        frames = session.frames(stopped)
        # That file and the script are listed, and no other library's frames between them.
        assert {frame["source"]["path"] for frame in frames} == {str(file), str(program)}
        assert frames[-1]["line"] == stopped["tensorpoint"]["user_line"] == expected.user_line

        previous = line
        for _ in range(lines):
            stopped = session.step("next", stopped)
            assert stopped["reason"] == "step"
            reached, line = place(session, stopped)
            assert reached == file
            assert line != previous and abs(line - previous) <= 4, source[line - 1]
            assert session.evaluate("type(self).__name__", stopped)
            previous = line
        # Out of it through the layers around it; whatever library lies between is not shown.
        reached = file
        for _ in range(12):
            stopped = session.step("stepOut", stopped)
            reached, line = place(session, stopped)
            if reached == program:
                break
            assert reached == file
        assert (reached, line) == (program, expected.user_line)


@pytest.mark.parametrize(
    ("name", "step"), [("hf_gpt2", "next"), ("hf_trainer", "next"), ("hf_trainer", "stepOut")]
)
def test_of_an_activation_of_ones_own_in_a_librarys_model_only_ones_own_code_is_listed(
    name: str, step: str
) -> None:
    program = FRAMEWORKS / f"{name}.py"
    (expected, *_) = load(program).stops
    with Session() as session:
        session.launch(program, justMyCode=True)
        stopped = session.stopped()
        assert place(session, stopped) == (program, expected.op_line)
        frames = session.frames(stopped)
        assert {frame["source"]["path"] for frame in frames} == {str(program)}
        assert frames[-1]["line"] == expected.user_line
        stopped = session.step(step, stopped)
        assert place(session, stopped) == (program, expected.user_line)
