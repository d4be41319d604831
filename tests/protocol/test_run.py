"""`tensorpoint run` on real programs: reports, exit statuses, standard streams, signals, processes.

What a program sees is compared with what it sees under plain `python`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorpoint.report import JSON_KEYS
from tests.protocol.dap import line_of
from tests.protocol.runs import (
    DEADLINE,
    GATE_LINE,
    NAN_PROGRAM,
    SERVER,
    assert_gone,
    command,
    environment,
    nan_program,
    program,
    run,
    stops,
)

__all__ = ["nan_program", "program"]


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


LOCATED = """\
import torch
from torch import nn


class Share(nn.Module):
    def forward(self, amount, total):
        total = torch.where(total < 0, torch.inf, total)
        return amount / total


class Norm(nn.Module):
    def forward(self, x):
        return x.square().sum(-1).sqrt()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.share, self.norm = Share(), Norm()

    def forward(self, x, total):
        return self.norm(self.share(x * self.scale, total))


net = Net()
net(torch.arange(8.0).view(2, 4), torch.tensor([[-1.0], [0.0]]))
net(torch.zeros(2, 4), torch.ones(2, 1)).sum().backward()
"""


def test_json_has_the_operation_with_its_operands_and_why(
    program: Callable[[str], Path], forked: None
) -> None:
    path = program(LOCATED)
    forward, backward = stops(run("--json", "--on-stop", "continue", path))
    keys = ("op", "op_file", "op_line", "operands", "cause", "forward_file", "forward_line")
    assert {key: forward[key] for key in (*keys, "replayed", "event")} == {
        "event": "nonfinite.forward",
        "op": "aten.div.Tensor",
        "op_file": str(path),
        "op_line": line_of(path, "return amount / total"),
        "operands": [
            {
                "name": "amount",
                "dtype": "float64",
                "shape": [2, 4],
                "device": "cpu",
                "min": 0.0,
                "max": 7.0,
                "nonfinite": 0,
            },
            {
                "name": "total",
                "dtype": "float32",
                "shape": [2, 1],
                "device": "cpu",
                "min": 0.0,
                "max": 0.0,
                "nonfinite": 1,
            },
        ],
        "cause": "4/0 is inf: amount at [1, 0] is 4 and total at [1, 0] is 0.",
        "forward_file": None,
        "forward_line": None,
        "replayed": True,
    }
    assert str(forward["cure"]).startswith("Add a small number to the divisor")
    root = line_of(path, ".sqrt()")
    assert {key: backward[key] for key in (*keys, "replayed", "event", "line")} == {
        "event": "nonfinite.backward",
        "op": "aten.div.Tensor",
        "op_file": str(path),
        "op_line": root,
        "operands": [
            {
                "name": name,
                "dtype": "float64",
                "shape": [2],
                "device": "cpu",
                "min": value,
                "max": value,
                "nonfinite": 0,
            }
            for name, value in (("self", 1.0), ("other", 0.0))
        ],
        "cause": "The slope of sqrt at 0 is infinite: x.square().sum(-1) at [0] is 0.",
        "forward_file": str(path),
        "forward_line": root,
        "replayed": False,  # a node of autograd's has no frame: the stop is at backward()
        "line": line_of(path, ".backward()"),
    }
    assert str(backward["cure"]).startswith("Add a small number inside, sqrt(x + eps)")


ROUNDED = """\
import torch
from torch import nn


class Policy(nn.Module):
    def forward(self, logits):
        probs = logits.softmax(-1)
        return probs[:, 1].log()


logits = torch.tensor([[0.0, 1.0], [20.0, 0.0]], dtype=torch.float16)
nn.Sequential(nn.Dropout(0.0), Policy())(logits)

model = nn.Linear(2, 2).half()
weight = model(logits).square().mean() * 0 + 1e-5
loss = 1 / (weight * 1e-4)
loss.backward()
"""


def test_a_number_that_half_precision_rounded_to_0_is_told(
    program: Callable[[str], Path], forked: None
) -> None:
    path = program(ROUNDED)
    layer, loss = stops(run("--json", "--on-stop", "continue", path))
    assert (layer["op"], layer["op_line"]) == ("aten.log.default", line_of(path, ".log()"))
    assert layer["cause"] == (
        "log of 0 is -inf: probs[:, 1] at [1] is 0, to which float16 has rounded the softmax of 0 "
        "beside 20 = 2.061e-09."
    )
    assert (loss["op"], loss["op_line"]) == ("aten.reciprocal.default", line_of(path, "1 / ("))
    assert str(loss["cause"]).endswith(
        " is 0, to which float16 has rounded 1.001e-05 · 0.0001 = 1.001e-09."
    )


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
    program: Callable[[str], Path], tmp_path: Path, forked: None
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


def test_a_stop_in_a_worker_ends_all_processes(
    program: Callable[[str], Path], forked: None
) -> None:
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


@pytest.mark.parametrize("status", [3, 245, 255])  # 3 after a stop, 245 is -SIGSEGV
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
    # As python shows it, without the debugger's frames.
    assert done.stderr.count("  File ") == 2, done.stderr
    assert "tensorpoint" not in done.stderr.replace(str(SERVER), "")


def test_an_exception_raised_in_a_backward_is_as_python_prints_it(
    program: Callable[[str], Path], forked: None
) -> None:
    path = program("""
import torch

class Act(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ torch.ones(5, 5)

Act.apply(torch.nn.Linear(3, 3)(torch.ones(2, 3))).sum().backward()
""")
    plain = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    traceback = plain.stderr[plain.stderr.index("Traceback") :]
    assert "in backward\n    return gradient" in traceback
    done = run(path)
    assert done.returncode == 1
    assert done.stderr[done.stderr.index("Traceback") :].startswith(traceback), done.stderr
    assert "tensorpoint: In @, at" in done.stderr


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


def test_what_holds_no_program_is_refused_as_by_python(tmp_path: Path) -> None:
    folder, archive = tmp_path / "folder", tmp_path / "archive.zip"
    folder.mkdir()
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("other.py", "")
    for target in (folder, archive):
        as_python = subprocess.run(
            [sys.executable, str(target)], check=False, capture_output=True, text=True, timeout=60
        )
        done = run(target)
        assert done.returncode == as_python.returncode == 1
        assert done.stderr.partition(": ")[2] == as_python.stderr.partition(": ")[2]
    with zipfile.ZipFile(archive, "a") as packed:
        packed.writestr("__main__.py", "print('packed')")
    assert run(archive).stdout == "packed\n"


@pytest.mark.parametrize("command", ["run", "doctor", "demo"])
def test_logs_that_cannot_be_written_are_refused_at_the_start(command: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    program = ["-c", "print('ran')"] if command == "run" else []
    done = subprocess.run(
        [sys.executable, "-m", "tensorpoint", command, "--log-dir", str(file / "logs"), *program],
        check=False,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env=environment(),
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--log-dir: cannot write into {file / 'logs'}: Not a directory" in done.stderr


def test_what_names_no_module_is_said_with_what_is_near(nan_program: Path) -> None:
    typo, early = 'nonfinite("gat")', 'nonfinite("model.lin") and step > 100'
    done = run("--on", typo, "--on", early, "--on", 'nonfinite("lin")', nan_program)
    assert done.returncode == 7  # the program's own
    told = [line for line in done.stderr.splitlines() if line.startswith("tensorpoint:")]
    assert told == [
        f"tensorpoint: {typo}: no module so far has a path that matches 'gat'; near to it: gate",
        f"tensorpoint: {early}: no module so far has a path that matches 'model.lin'; "
        'paths begin below the model: "lin"',
    ]


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
