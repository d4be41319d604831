"""Libraries are loaded without a trace function, and steps and breakpoints don't notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.protocol.dap import Session

PROGRAM = """\
import helper
import torch
x = torch.zeros(1)
helper.use(x)
"""
HELPER = """\
import torch
value = torch.ones(1)
def use(x):
    return x + value
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text(HELPER, encoding="utf-8")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


@pytest.mark.parametrize("just_my_code", [True, False])
def test_steps_over_imports_and_breakpoints_in_what_is_imported(
    program: Path, just_my_code: bool
) -> None:
    helper = program.with_name("helper.py")
    with Session() as session:
        session.launch(
            program,
            filters=[],
            breakpoints={str(program): [1], str(helper): [1, 4]},
            justMyCode=just_my_code,
        )
        places = [session.top(stopped := session.stopped())]
        for _ in range(3):
            stopped = session.step("next", stopped)
            places.append(session.top(stopped))
        assert places == [
            ("program.py", 1),
            ("helper.py", 1),  # a breakpoint at module level, in what the program imports
            ("helper.py", 2),  # over `import torch`
            ("helper.py", 3),
        ]
        session.resume(stopped)
        stopped = session.stopped()
        assert session.top(stopped) == ("helper.py", 4)
        assert session.evaluate("__import__('sys').gettrace() is not None", stopped) == "True"
        session.resume(stopped)
        assert session.exit_code() == 0, session.output()


def test_a_step_into_an_import_of_a_library_goes_on_to_the_next_line(program: Path) -> None:
    with Session() as session:
        session.launch(program, filters=[], breakpoints={str(program): [2]})
        stopped = session.step("stepIn", session.stopped())
        assert session.top(stopped) == ("program.py", 3)
        session.resume(stopped)
        assert session.exit_code() == 0, session.output()
