"""A launch in an editor from the resident process: what it was without, but sooner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tensorpoint.resident.messages import ZygoteStatus
from tests.conftest import Write
from tests.protocol.dap import DEADLINE, STUBBED, Message, Session, eventually, line_of
from tests.protocol.samples import GATE
from tests.resident.hosts import Host
from tests.resident.test_faults import NO_TORCH

pytestmark = pytest.mark.xdist_group("resident")


@pytest.fixture
def resident(shared_host: Host, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Adapters that this test starts find the host, and wait for a zygote."""
    _find(shared_host, monkeypatch)
    shared_host.prepare_adapters()
    return shared_host


def _find(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TENSORPOINT_RUNTIME_DIR", "XDG_CACHE_HOME", "TENSORPOINT_RESIDENT", "TP_ONE"):
        if name in host.environment:
            monkeypatch.setenv(name, host.environment[name])


def test_a_nan_stops_and_the_session_is_an_ordinary_one(resident: Host, write: Write) -> None:
    program = write(GATE + "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(7)\n")
    with resident.counting_runs() as runs, Session() as session:
        session.launch(program)
        stopped = session.stopped()
        assert session.places(stopped)[1] == ("program.py", line_of(program, "# call gate"))
        pid = session.expect_process()
        assert session.evaluate("__import__('os').getpid()", stopped) == str(pid)
        assert session.evaluate("__import__('sys').argv", stopped) == f"[{str(program)!r}]"
        assert {path for path, _ in session.places(stopped)} == {"program.py"}
        session.request("setExceptionBreakpoints", filters=[])
        session.resume(stopped)
        assert session.exit_code() == 7
        session.expect("terminated")
        assert "out\n" in session.output("stdout") and "err\n" in session.output("stderr")
        assert [event["event"] for event in session.events()].count("process") == 1
    assert runs == [1]
    session.expect_no_process()


def test_only_frames_of_the_program_are_listed_without_just_my_code(
    resident: Host, write: Write
) -> None:
    program = write("x = 1\nbreakpoint()\nprint(x)\n")
    with Session() as session:
        session.launch(program, justMyCode=False)
        stopped = session.stopped()
        assert session.places(stopped) == [("program.py", 3)]
        session.resume(stopped)
        assert session.exit_code() == 0


def test_stop_on_entry_arguments_environment_and_input(resident: Host, write: Write) -> None:
    program = write(
        """\
        import os, sys
        print(sys.argv[1:], os.environ["GIVEN"], os.environ.get("HIDDEN"), os.getcwd())
        print(repr(sys.stdin.read()))
        os.write(1, b"written to the file\\n")
        os.system("echo of a child")
        """
    )
    os.environ["HIDDEN"] = "yes"
    given: Message = {"env": {"GIVEN": "given", "HIDDEN": None}, "args": ["a", "b c"]}
    try:
        with resident.counting_runs() as runs, Session() as session:
            session.launch(program, stopOnEntry=True, cwd=str(program.parent), **given)
            stopped = session.stopped()
            assert (stopped["reason"], session.top(stopped)) == ("entry", ("program.py", 1))
            session.resume(stopped)
            assert session.exit_code() == 0
            session.expect("terminated")
    finally:
        del os.environ["HIDDEN"]
    output = session.output("stdout")
    assert f"['a', 'b c'] given None {program.parent}\n''\n" in output
    assert "written to the file\n" in output and "of a child\n" in output
    assert runs == [1]


@pytest.mark.parametrize("kind", ["module", "code"])
def test_a_module_and_code_are_launched(resident: Host, write: Write, kind: str) -> None:
    folder = write(
        "import sys\nprint('name', __name__, sys.argv)\nbreakpoint()\nx = 1\n", "mod.py"
    ).parent
    target = (
        "mod" if kind == "module" else "import sys; print('name', __name__); breakpoint()\nx = 1"
    )
    with resident.counting_runs() as runs, Session() as session:
        session.initialize()
        session.start("launch", cwd=str(folder), console="internalConsole", **{kind: target})
        session.configure()
        stopped = session.stopped()
        session.resume(stopped)
        assert session.exit_code() == 0
        assert "name " in session.output("stdout")
    assert runs == [1]


@pytest.mark.parametrize("how", ["terminate", "disconnect", "adapter", "launcher", "editor"])
def test_the_program_ends_with_its_session(resident: Host, write: Write, how: str) -> None:
    program = write("import time\nprint('up', flush=True)\nwhile True:\n    time.sleep(0.05)\n")
    with Session() as session:
        session.launch(program)
        eventually(lambda: "up" in session.output("stdout"), "the program's output")
        pid = session.expect_process()
        if how in ("terminate", "disconnect"):
            session.request(how)
        elif how == "editor":
            session.close_input()
        else:
            found = {
                number: line
                for number, line in session.processes().items()
                if ("debugpy_adapter" if how == "adapter" else "launcher") in line
            }
            os.kill(next(iter(found)), signal.SIGKILL)
        eventually(lambda: not Path(f"/proc/{pid}").exists(), "the program's end")
    eventually(lambda: not session.processes(), f"the end of {session.processes()}")
    eventually(lambda: pid not in resident.status().zygotes[0].running, "the host's knowing")


def test_without_debugging_the_program_runs_alone(resident: Host, write: Write) -> None:
    program = write("import sys\nprint(sys.gettrace(), 'debugpy' in sys.modules, sys.argv)\n")
    with resident.counting_runs() as runs, Session() as session:
        session.initialize()
        number = session.send(
            "launch", program=str(program), console="internalConsole", noDebug=True
        )
        assert session.answer(number)["success"]
        assert session.exit_code() == 0
        assert f"None False [{str(program)!r}]" in session.output("stdout")
    assert runs == [1]


def test_in_a_terminal(resident: Host, write: Write) -> None:
    program = write(GATE)
    with resident.counting_runs() as runs, Session() as session:
        session.launch(program, console="integratedTerminal")
        stopped = session.stopped()
        assert len(session.terminals) == 1
        session.request("setExceptionBreakpoints", filters=[])
        session.resume(stopped)
        assert session.exit_code() == 0
    assert runs == [1]


def test_children_are_debugged_as_well(resident: Host, write: Write) -> None:
    program = write(
        """\
        import multiprocessing
        def work():
            value = 5
            print("child", value)  # here
        if __name__ == "__main__":
            for kind in ("fork", "spawn"):
                process = multiprocessing.get_context(kind).Process(target=work)
                process.start()
                process.join()
                print(kind, process.exitcode)
        """
    )
    place = {str(program): [line_of(program, "# here")]}
    with resident.counting_runs() as runs, Session() as session:
        session.launch(program, breakpoints={str(program): []})
        with session.child(breakpoints=place) as child:
            stopped = child.stopped()
            assert child.evaluate("value", stopped) == "5"
            child.resume(stopped)
            child.expect("terminated")
        with session.following_children():
            assert session.exit_code() == 0
        assert "fork 0\n" in session.output("stdout") and "spawn 0\n" in session.output("stdout")
    assert runs == [1]


@pytest.mark.parametrize(
    "given", [{"resident": False}, {"python": [sys.executable, "-O"], "resident": False}]
)
def test_it_can_be_switched_off(resident: Host, write: Write, given: dict[str, Any]) -> None:
    program = write("print('out')\n")
    with resident.counting_runs() as runs, Session() as session:
        session.launch(program, **given)
        assert session.exit_code() == 0
        assert "resident" not in session.output()
    assert runs == [0]


def test_what_it_is_asked_wrongly_is_refused(write: Write) -> None:
    with Session() as session:
        session.initialize()
        reason = session.refused("launch", program=str(write("")), resident="yes")
        assert reason == '"resident" must be true or false'


def test_modules_that_a_configuration_names_are_imported_ahead(
    host: Host, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    _find(host, monkeypatch)
    module = write("import os\nwhere = os.getpid()\n", "packages/heavy.py")
    paths = {"PYTHONPATH": f"{module.parent}{os.pathsep}{NO_TORCH['PYTHONPATH']}"}
    program = write("import os, heavy\nprint('ahead', heavy.where == os.getppid())\n")
    with Session() as session:  # a zygote that has been asked for nothing
        session.launch(program, env=paths)
        assert session.exit_code() == 0 and "ahead False" in session.output("stdout")
    with Session() as session:
        session.launch(program, env=paths, preload=["heavy", "nothing.at_all"])
        assert session.exit_code() == 0 and "ahead True" in session.output("stdout")
        told = "nothing.at_all can't be imported ahead (ModuleNotFoundError: No module named"
        assert told in session.output("console")
    with Session() as session:
        session.initialize()
        reason = session.refused("launch", program=str(program), preload=["import os"])
        assert reason.startswith('"preload" must be a list of names of modules')


def test_the_first_launch_is_cold_and_says_so(
    host: Host, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No host runs: this launch starts one for the next. What a program imports is learnt."""
    host.client.stop()
    _find(host, monkeypatch)
    monkeypatch.setenv("TENSORPOINT_RESIDENT", "1")
    program = write("import torch, accelerate\nbreakpoint()\nprint('out')\n")
    with Session() as session:
        session.launch(program, filters=[])
        stopped = session.stopped()
        told = "a resident process for {} is being started: this launch is an ordinary one"
        assert told.format(sys.executable) in session.output("console")

        def ready() -> bool:
            zygotes = host.status().zygotes
            return len(zygotes) == 1 and zygotes[0].state == "ready"

        eventually(ready, "a zygote", DEADLINE)

        def learnt() -> bool:
            (zygote,) = host.status().zygotes
            return zygote.state == "ready" and zygote.modules > before

        before = host.status().zygotes[0].modules
        eventually(learnt, "a zygote that has accelerate", DEADLINE)
        session.resume(stopped)
        assert session.exit_code() == 0
    code = "import sys\nprint('learnt', 'accelerate.accelerator' in sys.modules)\n"
    with Session() as session:
        session.launch(write(code, "next.py"))
        assert session.exit_code() == 0
        assert "learnt True" in session.output("stdout")


def test_our_own_processes_are_forks_too_and_die_with_the_editors(
    resident: Host, write: Write
) -> None:
    """The adapter, debugpy's and its launcher; a session that is killed leaves none of them."""
    program = write("import time\nprint('up', flush=True)\nwhile True:\n    time.sleep(0.05)\n")

    def ours() -> ZygoteStatus:
        return next(zygote for zygote in resident.status().zygotes if zygote.flags == ("-P",))

    for attempt in range(2):
        with Session() as session:
            session.launch(program)
            eventually(lambda: "up" in session.output("stdout"), "the program's output")
            pid = session.expect_process()
            forks = ours().running
            assert attempt == 0 or len(forks) >= 2  # where the first was found by its name, 3
            assert session.process is not None
            session.process.kill()
            _expect_end_of(pid, *forks)


def test_two_editors_in_one_workspace_do_not_meet(
    host: Host, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both start a host, of which there is one; each has its program, stops, locals and end."""
    host.client.stop()
    _find(host, monkeypatch)  # they wait until it is ready
    program = write("import sys\nname = sys.argv[1]\nname += '!'  # here\nprint(name)\n")
    with Session() as one, Session() as other:
        for session in (one, other):
            session.initialize()
        given: Message = {"program": str(program), "console": "internalConsole"}
        for session, name in ((one, "one"), (other, "other")):
            session.send("launch", args=[name], **given)
        for session in (one, other):
            session.expect("initialized")
            source, lines = {"path": str(program)}, [{"line": line_of(program, "# here")}]
            session.request("setBreakpoints", source=source, breakpoints=lines)
            session.request("configurationDone")
        stops = [session.stopped() for session in (one, other)]
        values = [
            session.evaluate("name", stop)
            for session, stop in zip((one, other), stops, strict=True)
        ]
        assert values == ["'one'", "'other'"]
        first, second = (session.expect_process() for session in (one, other))
        running = {pid for zygote in host.status().zygotes for pid in zygote.running}
        assert {first, second} <= running
        one.request("disconnect", terminateDebuggee=True)
        _expect_end_of(first)
        other.resume(stops[1])
        assert other.exit_code() == 0
        assert "other!" in other.output("stdout")
    log = (host.folder / "log" / "host.log").read_text()
    assert log.count("listens at") == 2  # that of this test before, and one for both


def test_a_module_of_the_program_that_shadows_one_of_ours_wins(
    resident: Host, write: Write
) -> None:
    write("mine = 5\n", "filelock.py")  # which torch imports
    program = write("import filelock\nprint(filelock.mine)\n")
    with Session() as session:
        session.launch(program)
        assert session.exit_code() == 0
        assert "5\n" in session.output("stdout")


def test_a_tty_is_handed_over_with_its_signals(shared_host: Host, write: Write) -> None:
    """Ctrl-C and a new size of a terminal reach the program, which is in another session."""
    import fcntl
    import pty
    import struct
    import termios

    program = write(
        """\
        import os, signal, sys, time
        resized = lambda *_: print("now", *os.get_terminal_size(), flush=True)
        signal.signal(signal.SIGWINCH, resized)
        try:
            print("tty", [os.isatty(n) for n in range(3)], os.get_terminal_size(), flush=True)
            while True:
                time.sleep(0.05)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            print("read", repr(input()), flush=True)
        """
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(sys.executable, shared_host.command(str(program)), shared_host.environment)
    seen = b""

    def until(text: bytes) -> None:
        nonlocal seen
        end = time.monotonic() + 120
        while text not in seen:
            assert time.monotonic() < end, seen
            seen += os.read(terminal, 1000)

    until(b"tty [True, True, True]")
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))
    until(b"now 97 31")
    os.write(terminal, b"\x03")
    until(b"interrupted")
    os.write(terminal, b"line\n")
    until(b"read 'line'")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


def test_ctrl_z_stops_the_program_and_fg_continues_it(shared_host: Host, write: Write) -> None:
    program = write(
        "import os, time\nprint(os.getpid(), flush=True)\n"
        "for n in range(600):\n    print(n, flush=True)\n    time.sleep(0.05)\n"
    )
    process = subprocess.Popen(
        shared_host.command(str(program)),
        env=shared_host.environment,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGTSTP)
    eventually(lambda: _state(child) == "T" and _state(process.pid) == "T", "both stopped")
    process.send_signal(signal.SIGCONT)
    eventually(lambda: _state(child) in "SR", "the program goes on")
    process.terminate()
    assert process.wait(DEADLINE) == -signal.SIGTERM
    eventually(lambda: not Path(f"/proc/{child}").exists(), "the program's end")


def test_twenty_sessions_in_a_row_leave_nothing(resident: Host, write: Write) -> None:
    """Ended by the program, from a stop, by disconnecting and by an editor that is killed."""
    program = write("print('up', flush=True)  # here\n")
    lines = {str(program): [line_of(program, "# here")]}

    def one(number: int) -> None:
        with Session() as session:
            session.launch(program, breakpoints=lines, **STUBBED)
            stopped, pid = session.stopped(), session.expect_process()
            match number % 4:
                case 0:
                    session.resume(stopped)
                    assert session.exit_code() == 0
                case 1:
                    session.request("disconnect", terminateDebuggee=True)
                case 2:
                    session.request("terminate")
                case _:
                    assert session.process is not None
                    session.process.kill()
            _expect_end_of(pid)
        eventually(lambda: not session.processes(), "the end of all")

    def held() -> list[int]:
        pids = [resident.status().pid, *(each.pid for each in resident.status().zygotes)]
        return [len(os.listdir(f"/proc/{pid}/{what}")) for pid in pids for what in ("fd", "task")]

    def at_rest() -> bool:
        return not any(each.running for each in resident.status().zygotes)

    one(0)  # what it imports, and its zygote, are there afterwards
    eventually(at_rest, "the first one's end")
    before, files = held(), sorted(os.listdir(resident.folder))
    for number in range(20):
        one(number)
    eventually(at_rest, "the last one's end")
    # Not the same: the connection that has just asked may have been open before.
    eventually(
        lambda: len(held()) == len(before) and all(map(int.__le__, held(), before)),
        "what the last one held is given back",
    )
    assert sorted(os.listdir(resident.folder)) == files


def test_a_storm_of_forks_ends_with_stop_and_the_next_launch_works(
    resident: Host, write: Write
) -> None:
    storm = write(
        """\
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.close(1)
        for _ in range(5):  # 2 ** 5 processes
            os.fork()
        open(os.environ["TP_UP"] + f"/{os.getpid()}", "w").close()
        while True:
            time.sleep(0.05)
        """
    )
    up = storm.parent / "up"
    up.mkdir()
    with Session() as session:
        variables = {**STUBBED["env"], "TP_UP": str(up)}
        session.launch(storm, env=variables, subProcess=False)
        eventually(lambda: len(os.listdir(up)) == 32, "the last fork", DEADLINE)
        session.request("disconnect", terminateDebuggee=True)
        _expect_end_of(*map(int, os.listdir(up)))
    with Session() as session:
        session.launch(write("print('again')\n", "next.py"), **STUBBED)
        assert session.exit_code() == 0
        assert "again" in session.output("stdout")


def _expect_end_of(*pids: int) -> None:
    places = [Path(f"/proc/{pid}") for pid in pids]
    eventually(lambda: not any(map(Path.exists, places)), "the end of all")


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
