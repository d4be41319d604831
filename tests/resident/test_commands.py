"""`tensorpoint host` as one types it: beside a host, after it, and where there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.protocol.dap import eventually
from tests.resident.hosts import SERVER, Host, run
from tests.resident.test_faults import NO_TORCH, begin, gone, only_zygote, runs_again

pytestmark = pytest.mark.xdist_group("resident")


def typed(host: Host, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tensorpoint", "host", *arguments]
    return run(command, {**host.environment, "PYTHONPATH": str(SERVER), **variables})


def test_status_tells_of_the_host_and_of_each_zygote(host: Host) -> None:
    runs_again(host)
    status, zygote = host.status(), only_zygote(host)
    shown = typed(host, "status")
    assert (shown.returncode, shown.stderr) == (0, "")
    first, named, counted = shown.stdout.splitlines()
    assert first == f"host {status.pid}, version {status.version}, at {host.folder}"
    assert named == f"{zygote.key}: {sys.executable}: ready"
    assert counted.startswith(f"  process {zygote.pid}, ") and "; 1 programs run, " in counted
    found = json.loads(typed(host, "status", "--json").stdout)
    assert found["pid"] == status.pid
    assert [each["pid"] for each in found["zygotes"]] == [zygote.pid]


def test_restart_replaces_the_zygotes_and_lets_programs_end(host: Host, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('up', flush=True)\nprint(input())\n")
    process = begin(host, program, stdin=subprocess.PIPE)
    before = only_zygote(host).pid
    assert before is not None
    assert typed(host, "restart").returncode == 0
    runs_again(host)
    assert before not in [zygote.pid for zygote in host.status().zygotes if zygote.state == "ready"]
    assert process.communicate("still there\n")[0] == "still there\n"
    assert process.returncode == 0
    eventually(lambda: gone(before), "the end of the one before")


def test_stop_ends_all_and_the_next_launch_starts_another(host: Host) -> None:
    runs_again(host)
    pids = [host.status().pid, only_zygote(host).pid or 0]
    assert typed(host, "stop").returncode == 0
    eventually(lambda: all(map(gone, pids)), "the end of host and zygote")
    for action in ("status", "stop", "restart"):
        done = typed(host, action)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("tensorpoint host: ") and "Traceback" not in done.stderr
    assert "listens at" in typed(host, "logs").stdout  # what it did can still be read
    assert typed(host, "start", **NO_TORCH).returncode == 0
    assert only_zygote(host).pid not in pids
    assert typed(host, "stop").returncode == 0


def test_logs_are_those_of_this_folder(host: Host, tmp_path: Path) -> None:
    shown = typed(host, "logs").stdout
    assert shown.startswith(f"== {host.folder}/log/") and "listens at" in shown
    elsewhere = typed(host, "logs", TENSORPOINT_RUNTIME_DIR=str(tmp_path / "r"))
    assert (elsewhere.returncode, elsewhere.stdout) == (0, "")
    nobody = typed(host, "status", TENSORPOINT_RUNTIME_DIR=str(tmp_path / "r"))
    assert nobody.returncode == 1 and str(host.status().pid) not in nobody.stderr


def test_the_executable_that_it_names_runs_programs_in_forks(host: Host) -> None:
    named = typed(host, "python")
    assert named.returncode == 0
    runs_again(host)
    done = run([named.stdout.strip(), "-c", "print(5)"], {**host.environment, **NO_TORCH})
    assert (done.returncode, done.stdout) == (0, "5\n")
    assert only_zygote(host).runs == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["begin"], "invalid choice: 'begin'"),
        (["status", "--drop"], "--drop goes with weights"),
        (["python", "--python", "/nowhere/python"], "there is no interpreter '/nowhere/python'"),
    ],
)
def test_what_is_asked_wrongly_is_said(host: Host, arguments: list[str], said: str) -> None:
    done = typed(host, *arguments)
    assert done.returncode != 0 and said in done.stderr and "Traceback" not in done.stderr
