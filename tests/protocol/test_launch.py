"""What debugpy takes in a launch configuration goes through, and stops come with all of it."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write
from tests.protocol.dap import STUB, STUBBED, Message, Session, line_of
from tests.protocol.samples import GATE, LAYERS

pytestmark = pytest.mark.usefixtures("both_ways")

STOP_AT_B = [{"name": "layer:b", "condition": "step == 1"}]
#: As the console script has it: the working directory is not on the adapter's path.
ADAPTER = [sys.executable, "-P", "-m", "tensorpoint", "dap"]
#: Writes what it sees into the file named last.
TELLS = """\
import json, os, sys
names = ("PLAIN", "FROM_FILE", "BOTH", "REFERS")
told = {
    "argv": sys.argv[1:-1],
    "cwd": os.getcwd(),
    "env": {name: os.environ.get(name) for name in names},
    "name": __name__,
    "optimised": not __debug__,
}
with open(sys.argv[-1], "w") as file:
    json.dump(told, file)
"""


def told(session: Session, path: Path, **arguments: Any) -> Message:
    """What the program that is launched with these arguments saw."""
    given = [*arguments.pop("args", []), str(path)]
    session.launch(args=given, **arguments)
    assert session.exit_code() == 0, session.output()
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", ["program", "module", "code"])
def test_program_module_and_code_stop(write: Write, kind: str) -> None:
    program = write(LAYERS, "söme where/net.py")
    arguments: Message = {
        "program": {"program": str(program)},
        "module": {"module": "net", "cwd": str(program.parent)},
        "code": {"code": program.read_text(encoding="utf-8").splitlines()},
    }[kind]
    with Session() as session:
        session.launch(filters=[], functions=STOP_AT_B, **{**arguments, **STUBBED})
        stopped = session.stopped()
        assert (stopped["tensorpoint"]["module"], stopped["tensorpoint"]["step"]) == ("b", 1)
        frame = session.frames(stopped)[0]
        assert frame["line"] == line_of(program, "# call b")
        if kind != "code":
            assert frame["source"]["path"] == str(program)
            stopped = session.step("next", stopped)
            assert session.frames(stopped)[0]["line"] == line_of(program, "# after b")
        session.resume(stopped)
        assert session.exit_code() == 0


def test_a_client_that_does_not_wait_for_answers_is_served(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        session.send("initialize", adapterID="eager")
        session.send("setFunctionBreakpoints", breakpoints=[{"name": "layer:a"}])
        number = session.send("launch", program=str(program), console="internalConsole", **STUBBED)
        session.send("setFunctionBreakpoints", breakpoints=STOP_AT_B)
        session.send("threads")
        session.expect("initialized")
        session.request("configurationDone")
        assert session.answer(number)["success"]
        stopped = session.stopped()
        assert stopped["tensorpoint"]["condition"] == "layer:b if step == 1"
        session.resume(stopped)
        assert session.exit_code() == 0


def test_arguments_directory_and_environment_reach_the_program(write: Write) -> None:
    program = write(TELLS)
    folder = program.parent / "work here"
    folder.mkdir()
    write(
        """
        # variables
        FROM_FILE = 'from the file'
        BOTH="from the file"
        REFERS=${FROM_FILE}, ${HOME_OF_TEST}
        """,
        "work here/my.env",
    )
    with Session() as session:
        seen = told(
            session,
            program.with_suffix(".json"),
            program=str(program),
            args=["--flag", "two words", "ünï", "", "$HOME", "a;b"],
            cwd=str(folder),
            env={"PLAIN": "as given", "BOTH": "from env", **STUBBED["env"]},
            envFile="my.env",
            python=[sys.executable, "-O"],
        )
    assert seen["argv"] == ["--flag", "two words", "ünï", "", "$HOME", "a;b"]
    assert seen["cwd"] == str(folder)
    assert seen["env"] == {
        "PLAIN": "as given",
        "FROM_FILE": "from the file",
        "BOTH": "from env",
        "REFERS": "from the file, ",
    }
    assert seen["name"] == "__main__"
    assert seen["optimised"] is True


def test_an_env_file_that_is_missing_or_wrong_is_a_clear_error(write: Write) -> None:
    write("FINE=1\nnot fine\n", "wrong.env")
    folder = write("pass").parent
    with Session() as session:
        session.initialize()
        common: Message = {"code": "pass", "console": "internalConsole", "cwd": str(folder)}
        message = session.refused("launch", envFile="missing.env", **common)
        assert f"cannot read {folder / 'missing.env'}: No such file or directory" in message
        message = session.refused("launch", envFile=str(folder / "wrong.env"), **common)
        assert "wrong.env:2: expected NAME=value" in message
        message = session.refused("launch", envFile=str(folder), **common)
        assert "Is a directory" in message
        session.refused("launch", envFile=5, **common)
        # Nothing given is nothing wrong.
        session.launch(envFile="", **common)
        assert session.exit_code() == 0


def test_a_configuration_from_vs_codes_python_extension_is_taken(write: Write) -> None:
    """What it makes of `{"program": ..., "debugServer": 5678}`; its envFile need not exist."""
    program = write(LAYERS)
    configuration: Message = {
        "name": "Python: Current File",
        "type": "debugpy",
        "request": "launch",
        "program": str(program),
        "console": "integratedTerminal",
        "debugServer": 5678,
        "clientOS": "unix",
        "python": sys.executable,
        "debugAdapterPython": sys.executable,
        "debugLauncherPython": sys.executable,
        "cwd": str(program.parent),
        "envFile": str(program.parent / ".env"),
        "env": {"PYTHONIOENCODING": "UTF-8", "PYTHONUNBUFFERED": "1", **STUBBED["env"]},
        "stopOnEntry": False,
        "showReturnValue": True,
        "internalConsoleOptions": "neverOpen",
        "debugOptions": ["ShowReturnValue"],
        "justMyCode": True,
        "workspaceFolder": str(program.parent),
        "__configurationTarget": 6,
        "__sessionId": "1c2e6f3a-8a5e-4c4e-9d1e-000000000000",
        "tensorpoints": ["layer:b if step == 1"],
    }
    with Session() as session:
        session.start("launch", **configuration)
        session.configure(filters=[], filter_options=[{"filterId": "nonfinite"}])
        stopped = session.stopped()
        assert session.top(stopped)[1] == line_of(program, "# call b")
        session.resume(stopped)
        assert session.exit_code() == 0


@pytest.mark.parametrize("console", ["integratedTerminal", "externalTerminal"])
def test_a_program_in_a_terminal_stops(write: Write, console: str) -> None:
    program = write(LAYERS)
    redirect = console == "externalTerminal"
    arguments: Message = {**STUBBED, "console": console, "redirectOutput": redirect}
    with Session() as session:
        session.launch(program, filters=[], functions=STOP_AT_B, **arguments)
        assert len(session.terminals) == 1
        stopped = session.stopped()
        assert session.top(stopped)[1] == line_of(program, "# call b")
        session.resume(stopped)
        assert session.exit_code() == 0
        session.expect("terminated")
        assert ("step 0 2" in session.output("stdout")) is redirect


def test_without_debugging_the_program_runs_as_if_alone(write: Write) -> None:
    program = write(
        LAYERS
        + "import sys, torch.nn.modules.module as module\n"
        + "print('hooks', len(module._global_forward_hooks), '_tensorpoint' in sys.modules)\n"
        + "print('traced', sys.gettrace(), 'debugpy' in sys.modules)\n"
    )
    with Session() as session:
        session.initialize()
        number = session.send(
            "launch",
            program=str(program),
            console="internalConsole",
            noDebug=True,
            tensorpoints=["layer:*"],
            **STUBBED,
        )
        assert session.answer(number)["success"]
        assert session.exit_code() == 0
        assert not session.seen("stopped") and not session.seen("initialized")
        assert "hooks 0 False" in session.output("stdout")
        assert "traced None False" in session.output("stdout")


def test_path_mappings_show_the_clients_paths(write: Write) -> None:
    program = write(LAYERS, "there/net.py")
    here = program.parent.parent / "here"
    here.mkdir()
    (here / "net.py").write_text(LAYERS, encoding="utf-8")
    with Session() as session:
        session.launch(
            program,
            filters=[],
            functions=STOP_AT_B,
            breakpoints={str(here / "net.py"): [line_of(program, "# after net")]},
            pathMappings=[{"localRoot": str(here), "remoteRoot": str(program.parent)}],
            **STUBBED,
        )
        stopped = session.stopped()
        assert stopped["reason"] == "breakpoint"
        session.resume(stopped)
        stopped = session.stopped()
        assert stopped["reason"] == "function breakpoint"
        line = line_of(program, "# call b")
        frame = session.frames(stopped)[0]
        assert (frame["source"]["path"], frame["line"]) == (str(here / "net.py"), line)
        (output,) = (b for b in session.seen("output") if stopped["text"] in b["output"])
        assert (output["source"]["path"], output["line"]) == (str(here / "net.py"), line)
        session.request("setBreakpoints", source={"path": str(here / "net.py")}, breakpoints=[])
        session.resume(stopped)
        assert session.exit_code() == 0


def test_stop_on_entry_comes_first(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        session.launch(program, filters=[], functions=STOP_AT_B, stopOnEntry=True, **STUBBED)
        stopped = session.stopped()
        assert stopped["reason"] == "entry"
        assert session.top(stopped)[1] == 1
        session.resume(stopped)
        stopped = session.stopped()
        assert stopped["reason"] == "function breakpoint"
        session.resume(stopped)
        assert session.exit_code() == 0


def test_the_debuggee_sees_nothing_of_ours_but_one_private_package(write: Write) -> None:
    program = write(
        LAYERS
        + """\
import sys, threading

def has(name):
    try:
        __import__(name)
        return True
    except ImportError:
        return False

print("path", [entry for entry in sys.path if "tensorpoint" in entry or "server" in entry])
print("ours", sorted({name.partition(".")[0] for name in sys.modules if "tensorpoint" in name}))
print("importable", has("tensorpoint"), "loaded", "msgspec" in sys.modules, "z3" in sys.modules)
print("threads", [t.name for t in threading.enumerate()])
print("main", sorted(name for name in vars(sys.modules["__main__"]) if "tensor" in name.lower()))
"""
    )
    # -S: an environment where this one's packages, an editable install among them, aren't there.
    with Session() as session:
        session.launch(
            program, filters=[], functions=STOP_AT_B, **STUBBED, python=[sys.executable, "-S"]
        )
        stopped = session.stopped()
        assert session.top(stopped)[1] == line_of(program, "# call b")
        session.resume(stopped)
        assert session.exit_code() == 0
        output = session.output("stdout")
        assert "path []" in output
        # In a fork those of the zygote, too: names that nobody comes upon.
        assert re.search(r"^ours \['_tensorpoint'(, '_tensorpoint_\w+')*\]$", output, re.M)
        assert "importable False loaded False False" in output
        assert "threads ['MainThread']" in output
        assert "main []" in output


# Each set of flags has a zygote of its own, with torch: 10 s.
@pytest.mark.parametrize("flags", [["-E", "-X", "dev"], ["-I", "-W", "error"]])
def test_the_interpreters_own_flags_do_not_keep_the_agent_out(
    write: Write, flags: list[str]
) -> None:
    program = write(f"import sys\nsys.path.insert(0, {str(STUB)!r})\n" + LAYERS)
    with Session() as session:
        session.launch(program, filters=[], functions=STOP_AT_B, python=[sys.executable, *flags])
        stopped = session.stopped()
        assert session.top(stopped)[1] == line_of(program, "# call b")
        session.resume(stopped)
        assert session.exit_code() == 0, session.output()
        assert "Warning" not in session.output("stderr")


def test_modules_of_the_users_directory_do_not_shadow_ours(write: Write) -> None:
    """A user's `queue.py`, `json.py` or `random.py` beside the program is common enough."""
    for name in ("queue", "random", "token", "msgspec", "conditions"):
        write("raise RuntimeError('the wrong module was imported')\n", f"{name}.py")
    program = write("import sys\ndel sys.path[0]\n" + LAYERS)
    with Session(adapter=ADAPTER, cwd=program.parent) as session:
        session.launch(program, filters=[], functions=STOP_AT_B, cwd=str(program.parent), **STUBBED)
        stopped = session.stopped()
        session.resume(stopped)
        assert session.exit_code() == 0


def test_a_program_may_have_a_module_of_our_name(write: Write) -> None:
    write("mine = 1\n", "tensorpoint.py")
    program = write("import tensorpoint\nprint('mine', tensorpoint.mine)\n" + LAYERS)
    with Session() as session:
        session.launch(program, filters=[], functions=STOP_AT_B, **STUBBED)
        stopped = session.stopped()
        assert "Tensor event" in session.scopes(stopped)
        session.resume(stopped)
        assert session.exit_code() == 0
        assert "mine 1" in session.output("stdout")


def test_a_program_that_changes_directory_and_path_still_stops(write: Write) -> None:
    program = write("import os, sys\n" + LAYERS + "os.chdir('/')\nsys.path.clear()\nnet(0)\n")
    stop_at = [{"name": "layer:b", "condition": "step == 4"}]
    with Session() as session:
        session.launch(
            os.path.relpath(program), filters=[], functions=stop_at, cwd=os.getcwd(), **STUBBED
        )
        stopped = session.stopped()
        assert session.top(stopped)[1] == line_of(program, "# call b")
        assert stopped["tensorpoint"]["file"] == str(program)
        session.resume(stopped)
        assert session.exit_code() == 0


def test_a_nan_in_a_module_run_as_module_stops(write: Write) -> None:
    program = write(GATE, "package/train.py")
    write("", "package/__init__.py")
    with Session() as session:
        session.launch(module="package.train", cwd=str(program.parent.parent))
        stopped = session.stopped()
        assert session.places(stopped)[1] == ("train.py", line_of(program, "# call gate"))
        session.request("setExceptionBreakpoints", filters=[])
        session.resume(stopped)
        assert session.exit_code() == 0
