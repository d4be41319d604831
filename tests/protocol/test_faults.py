"""Something dies: the editor, the adapter, the program, torch. Nothing hangs, nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Write
from tests.protocol.dap import (
    DEADLINE,
    SERVER,
    STUBBED,
    Message,
    Session,
    eventually,
    serving,
)
from tests.protocol.samples import LAYERS, LAYERS_FOREVER

STOP_AT_B = [{"name": "layer:b", "condition": "step == 1"}]

# The editor vanishes ------------------------------------------------------------------------------


def nothing(session: Session, program: str) -> None:
    """Just started."""


def initialized(session: Session, program: str) -> None:
    session.initialize()


def launching(session: Session, program: str) -> None:
    session.initialize()
    session.send("launch", program=program, console="internalConsole", **STUBBED)


def launched(session: Session, program: str) -> None:
    session.start("launch", program=program, console="internalConsole", **STUBBED)


def running(session: Session, program: str) -> None:
    session.launch(program, filters=[], **STUBBED)
    session.expect("output", category="stdout")


def stopped(session: Session, program: str) -> None:
    session.launch(program, filters=[], functions=STOP_AT_B, **STUBBED)
    session.stopped()


def in_a_terminal(session: Session, program: str) -> None:
    arguments: Message = {**STUBBED, "console": "integratedTerminal"}
    session.launch(program, filters=[], functions=STOP_AT_B, **arguments)
    session.stopped()


MOMENTS = [nothing, initialized, launching, launched, running, stopped, in_a_terminal]


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_an_editor_that_closes_the_stream_leaves_no_process(
    write: Write, moment: Callable[[Session, str], None]
) -> None:
    program = write(LAYERS_FOREVER)
    with Session() as session:
        moment(session, str(program))
        session.close_input()
        session.wait_closed()
        assert session.exit_status() == 0
        session.expect_no_process()


@pytest.mark.parametrize(
    "moment", [initialized, launching, running, stopped], ids=lambda moment: moment.__name__
)
def test_an_adapter_that_is_killed_leaves_no_process(
    write: Write, moment: Callable[[Session, str], None]
) -> None:
    program = write(LAYERS_FOREVER)
    with Session() as session:
        moment(session, str(program))
        assert session.process is not None
        session.process.kill()
        session.expect_no_process()


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_a_daemon_of_the_programs_keeps_none_of_ours_alive(write: Write, killed: bool) -> None:
    """It holds the pipe that debugpy's launcher reads to its end."""
    daemon = "import subprocess\nd = subprocess.Popen(['sleep', '999'], start_new_session=True)\n"
    program = write(f"{daemon}print(d.pid, flush=True)\n{LAYERS_FOREVER}")
    with Session() as session:
        session.launch(program, filters=[], **STUBBED)
        pid = int(session.expect("output", category="stdout")["output"])
        assert session.process is not None
        if killed:
            session.process.kill()
        session.close_input()
        try:
            eventually(lambda: [*session.processes()] == [pid], f"{session.processes()} to end")
        finally:
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_a_terminal_that_never_opens_keeps_no_process(write: Write, killed: bool) -> None:
    """debugpy's adapter would wait a minute for what starts there."""
    with Session() as session:
        session.never_answer("runInTerminal")
        session.initialize()
        session.send("launch", program=str(write(LAYERS_FOREVER)), console="integratedTerminal")
        eventually(lambda: "runInTerminal" in str(session.messages()), "the request")
        assert session.process is not None
        if killed:
            session.process.kill()
        session.close_input()
        session.expect_no_process(50)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_adapter_that_is_asked_to_go_takes_the_program_along(
    write: Write, number: signal.Signals
) -> None:
    program = write(LAYERS_FOREVER)
    with Session() as session:
        running(session, str(program))
        assert session.process is not None
        session.process.send_signal(number)
        session.expect_no_process()
        assert "Traceback" not in session.stderr()


def test_a_client_that_reads_nothing_and_goes_leaves_no_process(write: Write) -> None:
    program = write("while True:\n    print('x' * 10_000)\n")
    with Session() as session:
        session.launch(program, filters=[])
        session.expect("output", category="stdout")
        session.stop_reading()
        time.sleep(1.0)  # pipes fill
        assert session.process is not None and session.process.stdout is not None
        session.close_input()
        os.close(session.process.stdout.fileno())
        session.expect_no_process()


# The program dies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("at_a_stop", [False, True], ids=["running", "stopped"])
def test_a_killed_program_ends_the_session(write: Write, at_a_stop: bool) -> None:
    program = write(LAYERS_FOREVER)
    with Session() as session:
        (stopped if at_a_stop else running)(session, str(program))
        pid = session.expect_process()
        os.kill(pid, signal.SIGKILL)
        session.expect("terminated")
        if at_a_stop:  # whatever is asked now is answered
            for command in ("stackTrace", "continue", "next", "exceptionInfo"):
                session.answer(session.send(command, threadId=1))
            session.answer(session.send("evaluate", expression="tp on layer:a"))
            session.answer(session.send("setFunctionBreakpoints", breakpoints=STOP_AT_B))
        assert session.seen("exited")[-1]["exitCode"] != 0
        session.request("disconnect")
        session.wait_closed()
        session.expect_no_process()


def test_a_program_that_hangs_can_be_ended(write: Write) -> None:
    program = write(LAYERS_FOREVER)
    with Session() as session:
        running(session, str(program))
        os.kill(session.expect_process(), signal.SIGSTOP)
        session.send("setFunctionBreakpoints", breakpoints=STOP_AT_B)
        session.answer(session.send("disconnect", terminateDebuggee=True))
        session.wait_closed()
        session.expect_no_process()


def test_a_program_that_hangs_while_it_is_configured_can_be_ended(write: Write) -> None:
    program = write(LAYERS_FOREVER)
    with Session() as session:
        session.start("launch", program=str(program), console="internalConsole", **STUBBED)
        pids = [pid for pid, text in session.processes().items() if str(program) in text]
        for pid in pids:
            if "launcher" not in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[1]:
                os.kill(pid, signal.SIGSTOP)
        session.send("setFunctionBreakpoints", breakpoints=STOP_AT_B)
        session.send("configurationDone")
        session.answer(session.send("disconnect", terminateDebuggee=True))
        session.wait_closed()
        session.expect_no_process()


def test_a_program_that_kills_itself_at_once_ends_the_session() -> None:
    with Session() as session:
        session.launch(code="import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        session.expect("terminated")
        session.request("disconnect")
        session.wait_closed()
        session.expect_no_process()


@pytest.mark.parametrize("code", ["import os; os._exit(3)", "raise SystemExit(3)", "1/0"])
def test_a_programs_own_exit_status_is_told(code: str) -> None:
    with Session() as session:
        session.launch(code=code, filters=[])
        assert session.exit_code() == (1 if code == "1/0" else 3)
        session.expect("terminated")


@pytest.mark.parametrize("console", ["internalConsole", "integratedTerminal"])
def test_a_missing_interpreter_is_a_clear_error(console: str) -> None:
    with Session() as session:
        session.initialize()
        message = session.refused(
            "launch", code="pass", console=console, python="/no/such/python3.99"
        )
        assert "/no/such/python3.99" in message
        session.request("disconnect")
        session.wait_closed()
        session.expect_no_process()


def test_a_terminal_that_does_not_open_ends_the_session_at_once() -> None:
    with Session(handles=()) as session:
        session.initialize()
        number = session.send("launch", code="pass", console="integratedTerminal")
        session.expect("terminated")
        assert "could not be started in a terminal" in session.output("important")
        assert not session.answer(number)["success"]
        session.wait_closed()
        session.expect_no_process()


def test_debugpys_adapter_that_dies_is_told_and_every_request_answered(write: Write) -> None:
    program = write(LAYERS_FOREVER)
    with Session() as session:
        stopped(session, str(program))
        (pid,) = [pid for pid, text in session.processes().items() if "debugpy_adapter" in text]
        os.kill(pid, signal.SIGSTOP)
        numbers = [session.send("threads"), session.send("stackTrace", threadId=1)]
        # Answered by us, after those before it were passed on.
        session.request("tensorpoint/check", condition="> 10", filter="grad_norm")
        os.kill(pid, signal.SIGKILL)
        session.expect("terminated")
        assert "debugpy's adapter ended" in session.output("important")
        for number in numbers:
            assert "went away" in session.answer(number)["message"]
        session.wait_closed()
        session.expect_no_process()


def test_a_missing_program_or_folder_is_a_clear_error(tmp_path: Path) -> None:
    with Session() as session:
        session.launch(tmp_path / "missing.py", filters=[])
        assert session.exit_code() != 0
        assert str(tmp_path / "missing.py") in session.output("stderr")
    with Session() as session:
        session.initialize()
        message = session.refused(
            "launch", program="/no/such/program.py", console="internalConsole"
        )
        assert "/no/such" in message


# Torch --------------------------------------------------------------------------------------------


def test_a_program_without_torch_is_debugged_as_ever(write: Write) -> None:
    program = write("import math\nx = math.pi  # here\nprint(x)  # next\n")
    with Session() as session:
        session.launch(program, breakpoints={str(program): [2]})
        first = session.stopped()
        assert session.console("tp on nonfinite('model.*')").endswith('nonfinite("model.*")')
        second = session.step("next", first)
        assert session.top(second)[1] == 3
        session.resume(second)
        assert session.exit_code() == 0
        assert not session.output("important")


BROKEN_TORCH = {
    "raises": "raise ImportError('libcudart.so.99: cannot open shared object file')",
    "is empty": "",
    "is half there": "from . import nothing_of_this_name",
}


@pytest.mark.parametrize("text", BROKEN_TORCH.values(), ids=BROKEN_TORCH)
def test_a_torch_that_cannot_be_imported_fails_as_without_us(write: Write, text: str) -> None:
    torch = write(text, "broken/torch/__init__.py")
    program = write(
        """
        import sys
        for _ in range(2):
            try:
                import torch
                print("imported")
            except ImportError as error:
                print("failed:", error)
        print([type(f).__module__ for f in sys.meta_path if "tensorpoint" in type(f).__module__])
        """
    )
    with Session() as session:
        session.launch(program, env={"PYTHONPATH": str(torch.parent.parent)})
        assert session.exit_code() == 0
        output = session.output("stdout")
        if text:
            assert output.count("failed:") == 2
            assert not session.output("important")
        else:
            assert output.count("imported") == 2
            # Not a torch that we know: said once, and the program goes on.
            assert session.output("important").count("Tensorpoint:") == 1


# The server ---------------------------------------------------------------------------------------


def test_two_editors_at_once_on_one_server_do_not_mix(write: Write) -> None:
    program = write(LAYERS)
    with (
        serving() as (_, port),
        Session(("127.0.0.1", port)) as one,
        Session(("127.0.0.1", port)) as two,
    ):
        one.launch(program, filters=[], functions=STOP_AT_B, **STUBBED)
        two.launch(program, filters=[], functions=[{"name": "layer:a"}], **STUBBED)
        first, second = one.stopped(), two.stopped()
        assert first["tensorpoint"]["module"] == "b"
        assert second["tensorpoint"]["module"] == "a"
        assert "layer:a" not in one.console("tp list")
        one.resume(first)
        assert one.exit_code() == 0
        two.request("setFunctionBreakpoints", breakpoints=[])
        two.resume(second)
        assert two.exit_code() == 0


def test_the_server_outlives_an_editor_that_vanishes(write: Write) -> None:
    program = write(LAYERS_FOREVER)
    with serving() as (server, port):
        with Session(("127.0.0.1", port)) as session:
            stopped(session, str(program))
            pid = session.expect_process()
            session.close_input()
            eventually(lambda: not os.path.exists(f"/proc/{pid}"), "the program's end")
        with Session(("127.0.0.1", port)) as session:
            session.write_raw(b"GET / HTTP/1.1\r\n\r\n")
            session.wait_closed()
        socket.create_connection(("127.0.0.1", port)).close()
        with Session(("127.0.0.1", port)) as session:
            session.launch(code="pass")
            assert session.exit_code() == 0
        assert server.poll() is None


def test_a_server_that_is_terminated_takes_its_programs_along(write: Write) -> None:
    program = write(LAYERS_FOREVER)
    with serving() as (server, port), Session(("127.0.0.1", port)) as session:
        running(session, str(program))
        pid = session.expect_process()
        server.terminate()
        assert server.wait(DEADLINE) in (0, -signal.SIGTERM)
        session.wait_closed()
        eventually(lambda: not os.path.exists(f"/proc/{pid}"), "the program's end")


def dap(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tensorpoint", "dap", *arguments],
        env={**os.environ, "PYTHONPATH": str(SERVER)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_port_in_use_is_a_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = dap("--listen", f"127.0.0.1:{port}")
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.invalid"])
def test_an_address_that_other_machines_reach_needs_a_flag(host: str) -> None:
    done = dap("--listen", f"{host}:0")
    assert done.returncode == 2
    assert "--allow-remote" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:", "host:port", "127.0.0.1:70000"])
def test_a_malformed_address_is_a_usage_error(address: str) -> None:
    done = dap("--listen", address)
    assert done.returncode == 2
    assert "is not HOST:PORT" in done.stderr


@pytest.mark.parametrize(
    ("address", "options"),
    [("localhost:0", []), ("127.0.0.1:0", []), ("0.0.0.0:0", ["--allow-remote"])],
)
def test_an_address_that_is_allowed_serves(address: str, options: list[str]) -> None:
    with serving("--listen", address, *options) as (_, port):
        host = "localhost" if address.startswith("localhost") else "127.0.0.1"
        with Session((host, port)) as session:
            session.launch(code="pass")
            assert session.exit_code() == 0


def test_an_empty_input_is_the_end() -> None:
    done = dap()
    assert (done.returncode, done.stdout) == (0, "")
