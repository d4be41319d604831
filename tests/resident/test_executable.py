"""`tensorpoint host python`: an executable that existing configurations name as the interpreter."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.conftest import Write
from tests.protocol.dap import Session, eventually
from tests.resident.hosts import SERVER, Host, run

pytestmark = pytest.mark.xdist_group("resident")


@pytest.fixture
def executable(shared_host: Host) -> str:
    command = [sys.executable, "-m", "tensorpoint", "host", "python"]
    made = run(command, {**shared_host.environment, "PYTHONPATH": str(SERVER)})
    shared_host.acquire()
    return made.stdout.strip()


def test_it_is_python(shared_host: Host, executable: str, write: Write) -> None:
    program = write("import sys, torch\nprint(sys.argv, sys.executable)\nsys.exit(4)\n")
    with shared_host.counting_runs() as runs:
        result = run([executable, str(program), "a", "b c"], shared_host.environment)
    assert (result.returncode, result.stderr) == (4, "")
    assert result.stdout == f"{[str(program), 'a', 'b c']} {sys.executable}\n"
    assert runs == [1]


def test_an_interpreter_is_looked_up_as_a_shell_does(shared_host: Host) -> None:
    command = [sys.executable, "-m", "tensorpoint", "host", "python", "--python"]
    folder, name = os.path.split(sys.executable)
    environment = {**shared_host.environment, "PYTHONPATH": str(SERVER), "PATH": folder}
    made = run([*command, name], environment).stdout.strip()
    assert f"exec {sys.executable} -IS" in Path(made).read_text()
    unknown = run([*command, "python0.1"], environment)
    assert unknown.returncode == 1
    assert unknown.stderr == "tensorpoint host: there is no interpreter 'python0.1'\n"


def test_without_a_host_it_is_python_too_and_starts_one(host: Host, write: Write) -> None:
    command = [sys.executable, "-m", "tensorpoint", "host", "python"]
    environment = {**host.environment, "PYTHONPATH": str(SERVER)}
    executable = run(command, environment).stdout.strip()
    host.client.stop()
    off = {**environment, "TENSORPOINT_RESIDENT": "0"}
    assert run([executable, "-c", "print(5)"], off).stdout == "5\n"
    assert not (host.folder / "host").exists()
    assert run([executable, "-c", "print(5)"], environment).stdout == "5\n"
    eventually((host.folder / "host").exists, "a host")


def test_torchrun_starts_its_ranks_from_it(
    shared_host: Host, executable: str, write: Write
) -> None:
    program = write(
        """\
        import os
        import torch
        import torch.distributed as dist
        dist.init_process_group("gloo")
        t = torch.ones(1) * dist.get_rank()
        dist.all_reduce(t)
        text = f"rank {dist.get_rank()} sum {t.item()} {os.environ['LOCAL_RANK']}\\n"
        os.write(1, text.encode())  # at once: the ranks share the pipe
        dist.destroy_process_group()
        """
    )
    # As torchrun sets it for its ranks where it isn't set: they are another environment.
    shared_host.acquire(OMP_NUM_THREADS="1")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    environment = {**shared_host.environment, "PYTHON_EXEC": executable}
    with shared_host.counting_runs() as runs:
        result = run([executable, *torchrun, str(program)], environment)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [f"rank {n} sum 6.0 {n}" for n in range(4)]
    assert runs == [5]


def test_a_debug_configuration_may_name_it(
    shared_host: Host, executable: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """debugpy's own adapter, which knows nothing of us: its launcher is a fork, too."""
    for name, value in shared_host.environment.items():
        monkeypatch.setenv(name, value)
    program = write("x = 1\nbreakpoint()\nprint(x)\n")
    shared_host.acquire(PYTHONPATH=str(SERVER))
    adapter = [sys.executable, "-m", "debugpy.adapter"]
    with shared_host.counting_runs() as runs, Session(adapter=adapter) as session:
        session.launch(program, python=[executable], filters=[])
        stopped = session.stopped()
        assert session.evaluate("x", stopped) == "1"
        session.resume(stopped)
        assert session.exit_code() == 0
    assert runs[0] >= 1
