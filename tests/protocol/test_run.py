"""`tensorpoint run` on real programs: reports, exit statuses, standard streams, signals, processes.

What a program sees is compared with what it sees under plain `python`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tensorpoint.report import JSON_KEYS

SERVER = Path(__file__).resolve().parents[2] / "server"
DEADLINE = 60.0

#: Runs five steps; on steps 2 and 4 the layer `gate` makes a NaN. What it prints is buffered.
NAN_PROGRAM = """\
import sys

import torch
from torch import nn


class Gate(nn.Module):
    def forward(self, x):
        return torch.log(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.gate = Gate()

    def forward(self, x):
        self.lin(x)
        return self.gate(x)


def main():
    model = Model()
    for step in range(5):
        x = torch.full((2, 4), 1.0)
        if step in (2, 4):
            x[1, 3] = -1.0
        model(x)
        print("step", step)
    sys.exit(7)


if __name__ == "__main__":
    main()
"""
#: The line of the operation that makes the NaN.
GATE_LINE = next(n for n, line in enumerate(NAN_PROGRAM.splitlines(), 1) if "torch.log(" in line)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SERVER)}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "tensorpoint", "run", *map(str, arguments)]


def run(
    *arguments: str | Path, stdin: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env=environment(),
        cwd=cwd,
        check=False,
    )


def stops(done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    """The stops of a --json run; anything else on stdout fails."""
    try:
        return [json.loads(line) for line in done.stdout.splitlines()]
    except ValueError:
        pytest.fail(f"stdout is not JSON lines:\n{done.stdout}\nstderr:\n{done.stderr}")


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    def write(code: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(code, encoding="utf-8")
        return path

    return write


@pytest.fixture
def nan_program(program: Callable[[str], Path]) -> Path:
    return program(NAN_PROGRAM)


# -- stops


def test_json_is_one_object_a_stop_and_nothing_else_on_stdout(nan_program: Path) -> None:
    done = run("--json", nan_program)
    assert done.returncode == 3, done.stderr
    (stop,) = stops(done)
    assert tuple(stop) == JSON_KEYS
    assert stop["event"] == "nonfinite.forward"
    assert stop["module"] == "gate"
    assert stop["module_type"] == "Gate"
    assert stop["op"] == "aten.log.default"
    assert (stop["file"], stop["line"]) == (str(nan_program), GATE_LINE)
    assert stop["function"] == "forward"
    assert (stop["user_file"], stop["user_line"]) == (str(nan_program), GATE_LINE)
    assert stop["step"] == 2
    assert stop["optimizer_step"] == 0
    assert stop["value"] == 1
    assert "gate" in str(stop["text"])
    # The program's own output is on stderr, as far as it came.
    assert "step 1\n" in done.stderr
    assert "step 2\n" not in done.stderr


def test_the_report_is_on_stderr_and_stdout_is_the_programs(nan_program: Path) -> None:
    done = run(nan_program)
    assert done.returncode == 3
    assert done.stdout == "step 0\nstep 1\n"
    assert "NaN" in done.stderr
    assert f"{nan_program}:{GATE_LINE} in forward" in done.stderr
    assert re.search(rf"> +{GATE_LINE} \| +return .*torch.log", done.stderr)
    assert "\x1b" not in done.stderr


def test_continue_goes_on_to_the_programs_end(nan_program: Path) -> None:
    done = run("--json", "--on-stop", "continue", nan_program)
    assert [stop["step"] for stop in stops(done)] == [2, 4]
    assert "step 4\n" in done.stderr
    assert done.returncode == 3


def test_max_stops_ends_the_program_after_them(nan_program: Path) -> None:
    done = run("--json", "--max-stops", "2", nan_program)
    assert [stop["step"] for stop in stops(done)] == [2, 4]
    assert "step 3\n" in done.stderr
    assert "step 4\n" not in done.stderr
    assert done.returncode == 3


def test_max_stops_with_continue_reports_no_more_and_goes_on(nan_program: Path) -> None:
    done = run("--json", "--max-stops", "1", "--on-stop", "continue", nan_program)
    assert [stop["step"] for stop in stops(done)] == [2]
    assert "step 4\n" in done.stderr
    assert done.returncode == 3


def test_on_replaces_nan_and_inf_anywhere(nan_program: Path) -> None:
    condition = 'nonfinite("lin")'
    done = run("--json", "--on", condition, nan_program)
    assert stops(done) == []
    assert done.returncode == 7

    done = run("--json", "--on", condition, "--on", "nonfinite", nan_program)
    assert [stop["module"] for stop in stops(done)] == ["gate"]


def test_on_takes_conditions_and_layers(nan_program: Path) -> None:
    done = run(
        *("--json", "--on-stop", "continue"),
        *("--on", 'nonfinite("*") and step > 3', "--on", "layer:lin if step == 1"),
        nan_program,
    )
    found = [(stop["module"], stop["step"]) for stop in stops(done)]
    assert found == [("lin", 1), ("gate", 4)], done.stderr


def test_a_refused_condition_runs_nothing(program: Callable[[str], Path], tmp_path: Path) -> None:
    path = program(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    done = run("--on", 'nonfinite("*") and stepp > 3', path)
    assert done.returncode == 2
    *_, shown, caret = done.stderr.splitlines()
    assert shown.strip() == 'nonfinite("*") and stepp > 3'
    assert caret.index("^") == shown.index("stepp")
    assert not (tmp_path / "ran").exists()


def test_a_nan_in_a_subprocess_stops_and_names_the_process(
    program: Callable[[str], Path], tmp_path: Path
) -> None:
    child = tmp_path / "child.py"
    child.write_text(NAN_PROGRAM, encoding="utf-8")
    parent = program(
        "import subprocess, sys\n"
        f"sys.exit(subprocess.run([sys.executable, {str(child)!r}]).returncode + 1)\n"
    )
    done = run("--on-stop", "continue", parent)
    assert done.returncode == 3, done.stderr
    assert done.stdout.endswith("step 4\n")
    assert len(re.findall(r"tensorpoint stop \d \[.*\d+.*\]", done.stderr)) == 2, done.stderr
    assert f"{child}:{GATE_LINE} in forward" in done.stderr

    done = run("--json", "--no-subprocess", parent)
    assert stops(done) == []
    assert done.returncode == 8


def test_a_stop_in_a_worker_ends_all_processes(program: Callable[[str], Path]) -> None:
    path = program(
        "import os, sys, time\n"
        "import torch\n"
        "from torch.utils.data import DataLoader, Dataset\n"
        "class Data(Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, i):\n"
        "        print('pid', os.getpid(), flush=True)\n"
        "        x = torch.nn.Identity()(torch.ones(3))\n"
        "        return torch.nn.Softmax(0)(x * 1e39 if i == 5 else x)\n"
        "print('pid', os.getpid(), flush=True)\n"
        "for batch in DataLoader(Data(), num_workers=2):\n"
        "    pass\n"
        "time.sleep(300)\n"
    )
    done = run(path)
    assert done.returncode == 3, done.stderr
    assert "Softmax" in done.stderr
    pids = {int(pid) for pid in re.findall(r"pid (\d+)", done.stdout)}
    assert len(pids) >= 2
    assert_gone(pids)


# -- as without us


@pytest.mark.parametrize("status", [0, 1, 3, 7, 245, 255])
def test_the_exit_status_is_the_programs(status: int) -> None:
    assert run("-c", f"import sys; sys.exit({status})").returncode == status


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM"])
def test_death_by_signal_is_a_shells_status(name: str) -> None:
    done = run("-c", f"import os, signal; os.kill(os.getpid(), signal.{name})")
    assert done.returncode == 128 + getattr(signal, name)


def test_an_uncaught_exception_prints_its_traceback(program: Callable[[str], Path]) -> None:
    done = run(program("def f():\n    raise KeyError('lost')\nf()\n"))
    assert done.returncode == 1
    assert "line 2, in f" in done.stderr
    assert done.stderr.endswith("KeyError: 'lost'\n")
    assert "tensorpoint" not in done.stderr.replace(str(SERVER), "")


def test_arguments_and_stdin_reach_the_program_untouched(program: Callable[[str], Path]) -> None:
    path = program("import sys\nprint(sys.argv[1:], sys.stdin.read())\n")
    arguments = ["--json", "--on", "x", "-m", "a b", "", "*", "--", "-h"]
    done = run(path, *arguments, stdin="one\ntwo\n")
    assert done.stdout == f"{arguments} one\ntwo\n\n"
    assert done.returncode == 0


def test_a_relative_program_and_its_neighbours(program: Callable[[str], Path]) -> None:
    path = program("import os, sys, neighbour\nprint(os.getcwd(), neighbour.name)\n")
    (path.parent / "neighbour.py").write_text("name = 'n'\n", encoding="utf-8")
    done = run(path.name, cwd=path.parent)
    assert done.stdout == f"{path.parent} n\n", done.stderr


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs PYTHONSAFEPATH")
def test_files_beside_the_program_do_not_shadow_ours(program: Callable[[str], Path]) -> None:
    path = program("import msgspec\nprint(msgspec.name)\n")
    for name in ("random", "asyncio", "argparse", "msgspec", "rich"):
        (path.parent / f"{name}.py").write_text("name = 'mine'\n", encoding="utf-8")
    # By its file, not by -m: as the console script does, without the working directory on the path.
    script = path.parent.parent / "tensorpoint-script"
    script.write_text("from tensorpoint.cli import main\nraise SystemExit(main())\n")
    done = subprocess.run(
        [sys.executable, str(script), "run", path.name],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env=environment(),
        cwd=path.parent,
        check=False,
    )
    assert done.stdout == "mine\n", done.stderr


def test_a_module(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import sys\nprint(__name__, __spec__.name, sys.argv)\n", encoding="utf-8"
    )
    done = run("-m", "pack", "--json", "x", cwd=tmp_path)
    assert done.stdout == f"__main__ pack.__main__ ['{package / '__main__.py'}', '--json', 'x']\n"


def test_a_missing_program_or_interpreter_is_said() -> None:
    done = run("no-such-program.py")
    assert done.returncode == 2
    assert "can't open file" in done.stderr
    done = run("--python", "no-such-python", "a.py")
    assert done.returncode == 2
    assert "no interpreter 'no-such-python'" in done.stderr


def test_an_interpreter_that_does_not_work_is_said(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 9\n", encoding="utf-8")
    broken.chmod(0o755)
    done = run("--python", broken, "-c", "pass")
    assert done.returncode == 1
    assert str(broken) in done.stderr


def test_breakpoint_opens_pdb_as_without_us(program: Callable[[str], Path]) -> None:
    path = program("x = 41\nbreakpoint()\nprint('on')\n")
    done = run(path, stdin="p x + 1\ncontinue\n")
    assert "42" in done.stdout
    assert "on" in done.stdout
    assert done.returncode == 0


def test_a_program_that_replaces_itself() -> None:
    then = "import sys; sys.exit(5)"
    done = run("-c", f"import os, sys; os.execv(sys.executable, [sys.executable, '-c', {then!r}])")
    assert done.returncode == 5, done.stderr


def test_a_reader_that_leaves_ends_the_run(nan_program: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen(
        command("--json", "--on-stop", "continue", nan_program),
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    os.close(writing)
    _, stderr = process.communicate(timeout=DEADLINE)
    assert process.returncode == 3
    assert "Traceback" not in stderr
    assert "BrokenPipe" not in stderr


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


def assert_gone(pids: set[int]) -> None:
    end = time.monotonic() + 15
    while left := {pid for pid in pids if _alive(pid)}:
        if time.monotonic() > end:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            pytest.fail(f"left behind: {left}")
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


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
    terminal.type("fg\n")
    time.sleep(0.5)
    terminal.type("again\n")
    terminal.read_until("on again")
    terminal.type("exit $?\n")
    assert terminal.wait() == 0


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
