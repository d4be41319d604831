"""What was recorded of a program is known when it has ended, however it did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tensorpoint.resident.client import Measured, measured
from tests.conftest import Write
from tests.protocol.dap import SERVER, Session, eventually, line_of
from tests.protocol.test_facts import FIVE_STEPS


@pytest.fixture(autouse=True)
def cache(resident_process: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the user's; with a resident process it is that one's, whose key it is part of."""
    if "TENSORPOINT_RUNTIME_DIR" not in os.environ:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def known(program: Path, *, ended: bool) -> Measured:
    def newest() -> Measured | None:
        found = measured(str(program))
        return found if found is not None and found.run.ended == ended else None

    eventually(newest, "facts of the last run")
    found = newest()
    assert found is not None
    return found


def test_a_program_that_ends_leaves_what_each_line_called(write: Write) -> None:
    program = write(FIVE_STEPS)
    with Session() as session:
        session.launch(program, record=True, filters=[])
        assert session.exit_code() == 0
        pid = session.expect_process()
        session.expect("terminated")
        found = known(program, ended=True)
    assert (found.run.program, found.run.pid, found.edited) == (str(program), pid, False)
    layers = {layer.module: layer for layer in found.lines[line_of(program, "# call layers")]}
    assert [*layers] == ["first", "act", "last"]
    assert layers["first"].outputs[0].shape == (3, 8)
    assert layers["first"].step == 4 and layers["first"].statistics is not None
    # An edit moves the lines: who shows them is told.
    program.write_text("# new\n" + FIVE_STEPS, encoding="utf-8")
    os.utime(program, (found.run.read + 1, found.run.read + 1))
    again = measured(str(program))
    assert again is not None and again.edited
    _expect_command_line(program)


def _expect_command_line(program: Path) -> None:
    def host(*options: str) -> str:
        command = [sys.executable, "-m", "tensorpoint", "host", "facts", *options]
        variables = {**os.environ, "PYTHONPATH": str(SERVER)}
        done = subprocess.run(
            command,
            check=False,
            cwd=program.parent,
            env=variables,
            text=True,
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    shown: dict[str, Any] = json.loads(host("--json"))
    assert shown["run"]["program"] == str(program)
    assert len(shown["facts"]["layers"]) == 4
    table = host()
    assert str(program) in table and "float32[3,8]" in table


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_a_program_that_is_killed_leaves_those_of_its_last_stop(write: Write, how: str) -> None:
    program = write(FIVE_STEPS)
    places = {str(program): [line_of(program, "# after training")]}
    with Session() as session:
        session.launch(program, record=True, filters=[], breakpoints=places)
        session.stopped()
        pid = session.expect_process()
        found = known(program, ended=False)
        if how == "kill":
            os.kill(pid, 9)
            session.expect("terminated")
        else:
            session.request("disconnect", terminateDebuggee=True)
    again = measured(str(program))
    assert again is not None and again.run.began == found.run.began
    assert len(again.lines[line_of(program, "# call layers")]) == 3


def test_a_running_program_that_is_left_leaves_those_of_that_moment(write: Write) -> None:
    program = write(FIVE_STEPS + "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    with Session() as session:
        session.launch(program, record=True, filters=[])
        eventually(lambda: "ready" in session.output(), "the program's output")
        session.request("disconnect", terminateDebuggee=True)
    assert len(known(program, ended=False).lines) == 2


def test_nothing_is_kept_unless_it_is_recorded(write: Write) -> None:
    program = write(FIVE_STEPS)
    with Session() as session:
        session.launch(program, filters=[])
        assert session.exit_code() == 0
        session.expect("terminated")
    assert measured(str(program)) is None
