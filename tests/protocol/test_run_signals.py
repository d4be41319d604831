"""`tensorpoint run` in a terminal, with signals, and when somebody is killed."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.protocol.dap import eventually
from tests.protocol.runs import (
    DEADLINE,
    assert_gone,
    command,
    environment,
    program,
)

__all__ = ["program"]


# -- terminals and signals


class Terminal:
    """A program in a terminal of its own, as a shell would start it."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.output = ""
        self.status: int | None = None
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], list(argv), {**environment(), "TERM": "dumb"})

    def read_until(self, text: str) -> str:
        end = time.monotonic() + DEADLINE
        while text not in self.output:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, end - time.monotonic()))
            data = b""
            if ready:
                # EIO: the last process that had the terminal open is gone.
                with contextlib.suppress(OSError):
                    data = os.read(self._fd, 65536)
            if not data:
                pytest.fail(f"{text!r} did not come:\n{self.output}")
            self.output += data.decode(errors="replace").replace("\r\n", "\n")
        return self.output

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def foreground(self) -> int:
        """The process group that has the terminal."""
        return os.tcgetpgrp(self._fd)

    def wait(self) -> int:
        """The exit status as a shell has it."""
        end = time.monotonic() + DEADLINE
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                self.status = 128 - code if code < 0 else code
            elif time.monotonic() > end:
                pytest.fail(f"did not end:\n{self.output}")
            else:
                self._drain()
        self._drain()
        return self.status

    def _drain(self) -> None:
        ready, _, _ = select.select([self._fd], [], [], 0.05)
        if ready:
            with contextlib.suppress(OSError):
                data = os.read(self._fd, 65536)
                self.output += data.decode(errors="replace").replace("\r\n", "\n")

    def close(self) -> None:
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)


@pytest.fixture
def in_terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(*argv: str) -> Terminal:
        opened.append(Terminal(argv))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


WAITING = """\
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
print("pids", os.getpid(), child.pid, flush=True)
try:
    print("ready", flush=True)
    time.sleep(300)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    {then}
"""


def waiting(then: str) -> str:
    return WAITING.format(then=then)


def pids_in(output: str) -> set[int]:
    found = re.search(r"pids (\d+) (\d+)", output)
    assert found, output
    return {int(found[1]), int(found[2])}


def test_the_program_has_the_terminal(in_terminal: Callable[..., Terminal]) -> None:
    code = (
        "import os, sys; print(os.isatty(0), os.isatty(1), os.isatty(2), flush=True); "
        "print('hello', input('name? '))"
    )
    terminal = in_terminal(*command("-c", code))
    terminal.read_until("name? ")
    # The job that the shell knows keeps the terminal: `run ... | less` and shell scripts need that.
    assert terminal.foreground() == terminal.pid
    terminal.type("ann\n")
    assert terminal.wait() == 0
    assert "True True True\n" in terminal.output
    assert "hello ann\n" in terminal.output


def test_ctrl_c_is_the_programs(
    in_terminal: Callable[..., Terminal], program: Callable[[str], Path]
) -> None:
    path = program(waiting("child.wait(); sys.exit(9)"))
    terminal = in_terminal(*command(path))
    pids = pids_in(terminal.read_until("ready"))
    terminal.type("\x03")
    terminal.read_until("interrupted")
    assert terminal.wait() == 9
    assert_gone(pids)


def test_ctrl_c_ends_a_program_that_does_not_handle_it(
    in_terminal: Callable[..., Terminal], program: Callable[[str], Path]
) -> None:
    terminal = in_terminal(*command(program(waiting("raise"))))
    pids = pids_in(terminal.read_until("ready"))
    terminal.type("\x03")
    assert terminal.wait() == 130
    assert "KeyboardInterrupt" in terminal.output
    assert_gone(pids)


def test_ctrl_c_ends_the_shell_script_around_us(
    in_terminal: Callable[..., Terminal], program: Callable[[str], Path]
) -> None:
    path = program(waiting("raise"))
    quoted = " ".join(f"'{word}'" for word in command(path))
    terminal = in_terminal("bash", "-c", f"{quoted}; echo the script goes on")
    terminal.read_until("ready")
    terminal.type("\x03")
    terminal.wait()
    assert "the script goes on" not in terminal.output


def test_a_second_ctrl_c_ends_everything(
    in_terminal: Callable[..., Terminal], program: Callable[[str], Path]
) -> None:
    stubborn = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('no', flush=True); "
    )
    terminal = in_terminal(*command(program(waiting(stubborn + "time.sleep(300)"))))
    pids = pids_in(terminal.read_until("ready"))
    terminal.type("\x03")
    terminal.read_until("no\n")
    terminal.type("\x03")
    assert terminal.wait() == 130
    assert_gone(pids)


def test_ctrl_c_before_the_program_began_leaves_nothing(
    in_terminal: Callable[..., Terminal],
) -> None:
    terminal = in_terminal(*command("-c", "import time; time.sleep(300)"))
    time.sleep(0.6)
    terminal.type("\x03")
    assert terminal.wait() == 130


def test_ctrl_z_stops_the_job_and_fg_goes_on(
    in_terminal: Callable[..., Terminal], program: Callable[[str], Path]
) -> None:
    path = program(
        "import sys, time\n"
        "print('ready', flush=True)\n"
        "time.sleep(1)\n"
        "print('on', input(), flush=True)\n"
    )
    terminal = in_terminal("bash", "--norc", "--noediting", "-i")
    terminal.type(" ".join(f"'{word}'" for word in command(path)) + "\n")
    terminal.read_until("ready")
    terminal.type("\x1a")
    terminal.read_until("Stopped")
    terminal.type("echo shell $((1 + 1))\n")
    terminal.read_until("shell 2")
    shell = terminal.foreground()
    terminal.type("fg\n")
    eventually(lambda: terminal.foreground() != shell, "the job in the foreground")
    terminal.type("again\n")
    terminal.read_until("on again")
    terminal.type("exit $?\n")
    assert terminal.wait() == 0


def test_a_signal_before_the_program_runs_is_passed_on_to_it(
    program: Callable[[str], Path], tmp_path: Path
) -> None:
    """As soon as we route signals; the program takes them before its first line."""
    (tmp_path / "sitecustomize.py").write_text(
        "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: print('got it', flush=True))\n",
        encoding="utf-8",
    )
    path = program("import time\ntime.sleep(300)\n")
    process = subprocess.Popen(
        command(path),
        env={**environment(), "PYTHONPATH": f"{tmp_path}{os.pathsep}{environment()['PYTHONPATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    status = Path(f"/proc/{process.pid}/status")
    end = time.monotonic() + DEADLINE
    while not _catches(status, signal.SIGWINCH):  # the last but one that we route
        assert time.monotonic() < end
        time.sleep(0.005)
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "got it\n"
    process.send_signal(signal.SIGTERM)
    process.wait(DEADLINE)


def _catches(status: Path, signum: int) -> bool:
    caught = re.search(r"^SigCgt:\s*(\w+)$", status.read_text(encoding="ascii"), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) & 1 << (signum - 1))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1"])
def test_signals_to_us_are_passed_on(name: str, program: Callable[[str], Path]) -> None:
    path = program(
        "import signal, sys, time\n"
        f"signal.signal(signal.{name}, lambda *_: sys.exit(6))\n"
        "print('ready', flush=True)\n"
        "time.sleep(300)\n"
    )
    process = started(path)
    process.send_signal(getattr(signal, name))
    assert process.wait(DEADLINE) == 6


def test_sigterm_ends_a_program_that_does_not_handle_it(program: Callable[[str], Path]) -> None:
    process = started(program(waiting("raise")))
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE) == 128 + signal.SIGTERM


#: As torch's workers do, they compare their parent with the one that they began with.
STARTS_WORKERS = """\
import multiprocessing, os, time

def work():
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.05)

context = multiprocessing.get_context("fork")
for number in range(1000):
    workers = [context.Process(target=work, daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    if number == 1:
        print("ready", flush=True)
    time.sleep(0.05)
    for worker in workers:
        worker.terminate()
"""


def test_sigterm_leaves_no_worker_that_was_just_forked(program: Callable[[str], Path]) -> None:
    path = program(STARTS_WORKERS)
    process = started(path)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE) == 128 + signal.SIGTERM
    eventually(lambda: not _running(path), "no worker is left")


def _running(program: Path) -> list[int]:
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(program) in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def test_killing_us_leaves_no_process(program: Callable[[str], Path]) -> None:
    process = started(program(waiting("raise")))
    children = _descendants(process.pid)
    assert len(children) >= 4, children
    process.kill()
    process.wait()
    assert_gone(children)


def test_an_adapter_that_dies_is_said_and_leaves_no_process(
    program: Callable[[str], Path],
) -> None:
    process = started(program(waiting("raise")), stderr=subprocess.PIPE)
    descendants = _descendants(process.pid)
    (adapter,) = (pid for pid in descendants if _command(pid)[-2:] == ["tensorpoint", "dap"])
    os.kill(adapter, signal.SIGKILL)
    assert process.wait(DEADLINE) == 1
    assert process.stderr is not None
    assert "the debug adapter ended while the program was running" in process.stderr.read()
    assert_gone(descendants)


def _command(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")[:-1]


def started(path: Path, stderr: int | None = None) -> subprocess.Popen[str]:
    """`tensorpoint run` on a program that has said that it is ready."""
    process = subprocess.Popen(
        command(path), stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment()
    )
    assert process.stdout is not None
    while "ready" not in (line := process.stdout.readline()):
        assert line, "the program ended early"
    return process


def _descendants(pid: int) -> set[int]:
    found: set[int] = set()
    waiting_ = [pid]
    while waiting_:
        parent = waiting_.pop()
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            children = {int(word) for word in task.read_text(encoding="ascii").split()}
            found |= children
            waiting_ += children
    return found
