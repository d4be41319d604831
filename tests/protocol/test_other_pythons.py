"""The stop mechanism on every CPython found here, in environments without us and without torch."""

from __future__ import annotations

import os

import pytest

from tests.conftest import Write
from tests.protocol.dap import STUB, STUBBED, Message, Session, line_of
from tests.protocol.pythons import other_pythons
from tests.protocol.samples import LAYERS, LIBRARY, THREADS, USES_LIBRARY

PYTHONS = other_pythons()
if not PYTHONS:
    pytest.skip("no other CPython >= 3.10 on this machine", allow_module_level=True)

each_python = pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
STOP_AT_B = [{"name": "layer:b", "condition": "step == 1"}]


def environments(version: str) -> list[dict[str, str]]:
    """What makes pydevd work in another way there."""
    ways = [{}]
    if int(version.partition(".")[2]) >= 12:
        ways.append({"PYDEVD_USE_SYS_MONITORING": "0"})
    return ways


CASES = [
    pytest.param(python, env, id=f"{version}{''.join(env) and ' without sys.monitoring'}")
    for version, python in PYTHONS.items()
    for env in environments(version)
]


@pytest.mark.parametrize(("python", "env"), CASES)
def test_stop_evaluate_and_step(write: Write, python: str, env: dict[str, str]) -> None:
    program = write(LAYERS)
    stops = [*STOP_AT_B, {"name": "layer:a", "condition": "step == 2"}]
    with Session() as session:
        session.launch(
            program,
            filters=["nonfinite", "uncaught"],
            functions=stops,
            python=python,
            env={**STUBBED["env"], **env},
        )
        stopped = session.stopped()
        assert stopped["tensorpoint"]["module"] == "b"
        assert session.top(stopped) == ("program.py", line_of(program, "# call b"))
        assert session.evaluate("x, y", stopped) == "(1, 2)"
        frame = session.frames(stopped)[0]["id"]
        scopes = session.request("scopes", frameId=frame)["scopes"]
        assert scopes[0]["name"] == "Tensor event"
        rows = session.request("variables", variablesReference=scopes[0]["variablesReference"])
        assert {"event", "layer", "module", "inputs"} <= {row["name"] for row in rows["variables"]}
        for mark in ("# after b", "# call net", "# after net"):
            stopped = session.step("next", stopped)
            assert session.top(stopped) == ("program.py", line_of(program, mark))
        session.resume(stopped)

        stopped = session.stopped()
        assert (stopped["tensorpoint"]["module"], stopped["tensorpoint"]["step"]) == ("a", 2)
        stopped = session.step("stepIn", stopped)
        assert session.top(stopped) == ("program.py", line_of(program, "# in a block"))
        stopped = session.step("stepOut", stopped)
        if session.top(stopped)[1] == line_of(program, "# call a"):
            stopped = session.step("next", stopped)
        assert session.top(stopped)[1] == line_of(program, "# call b")
        stopped = session.step("stepOut", stopped)
        assert session.top(stopped)[1] == line_of(program, "# call net")
        session.resume(stopped)
        assert session.exit_code() == 0
        assert not session.output("important")


@pytest.mark.parametrize(("python", "env"), CASES)
def test_next_walks_through_library_code(write: Write, python: str, env: dict[str, str]) -> None:
    library = write(LIBRARY, "site-packages/library.py")
    program = write(USES_LIBRARY)
    arguments: Message = {
        "python": python,
        "env": {**env, "PYTHONPATH": f"{STUB}{os.pathsep}{library.parent}"},
    }
    with Session() as session:
        session.launch(program, filters=[], functions=STOP_AT_B, **arguments)
        stopped = session.stopped()
        assert session.top(stopped) == ("library.py", line_of(library, "# library line"))
        for mark in ("# next library line", "# last library line"):
            stopped = session.step("next", stopped)
            assert session.top(stopped) == ("library.py", line_of(library, mark))
        stopped = session.step("stepOut", stopped)
        assert session.top(stopped) == ("program.py", line_of(program, "# user line"))
        session.resume(stopped)
        assert session.exit_code() == 0


@each_python
def test_several_threads_stop(write: Write, python: str) -> None:
    program = write(THREADS)
    with Session() as session:
        session.launch(program, filters=[], functions=STOP_AT_B, python=python, **STUBBED)
        threads: set[int] = set()
        while len(threads) < 3:
            stopped = session.stopped()
            threads.add(stopped["threadId"])
            assert session.top(stopped)[1] == line_of(program, "# call b")
            session.resume(stopped)
        assert session.exit_code() == 0
        assert len(session.seen("stopped")) == 3


@each_python
def test_a_child_process_stops(write: Write, python: str) -> None:
    write(LAYERS, "child.py")
    program = write(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, __file__.replace('program.py', 'child.py')], check=True)\n"
    )
    with Session() as session:
        session.launch(program, python=python, **STUBBED)
        with session.child(functions=STOP_AT_B) as child:
            stopped = child.stopped()
            assert child.top(stopped)[0] == "child.py"
            child.resume(stopped)
            child.expect("terminated")
        assert session.exit_code() == 0
