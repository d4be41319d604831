"""What runs out, or is not where the zygote is: programs run all the same, and nothing spins."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tensorpoint.resident import jobs, places
from tensorpoint.resident.client import Client, stub_command
from tensorpoint.resident.messages import Answer, Environment
from tests.conftest import Write
from tests.protocol.dap import eventually
from tests.resident.hosts import Host, run, running_host
from tests.resident.test_faults import LOOP, NO_TORCH, begin, only_zygote, runs_again

pytestmark = pytest.mark.xdist_group("resident")


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_zygote_without_file_numbers_turns_away_and_does_not_spin(
    host: Host, write: Write
) -> None:
    program = begin(host, write(LOOP))
    zygote = only_zygote(host).pid
    assert zygote is not None
    limits = resource.prlimit(zygote, resource.RLIMIT_NOFILE)
    held = [int(name) for name in os.listdir(f"/proc/{zygote}/fd")]
    answer = host.acquire(**NO_TORCH)
    # None left; one for the connection but none for its files; those, but none for the pidfd.
    for more in (0, 1, 4):
        resource.prlimit(zygote, resource.RLIMIT_NOFILE, (max(held) + 1 + more, limits[1]))
        before = _cpu_seconds(zygote)
        code = "import os; print(os.getppid())"
        result = run(host.command("-c", code, answer=answer), {**host.environment, **NO_TORCH})
        assert result.stdout == f"{os.getpid()}\n", (more, result.stderr)
        time.sleep(0.5)
        assert _cpu_seconds(zygote) - before < 0.3
    resource.prlimit(zygote, resource.RLIMIT_NOFILE, limits)
    result = run(host.command("-c", code, answer=answer), {**host.environment, **NO_TORCH})
    assert result.stdout == f"{zygote}\n"
    assert program.poll() is None
    program.kill()
    program.wait()
    runs_again(host)
    assert sorted(int(name) for name in os.listdir(f"/proc/{zygote}/fd"))[-1] <= max(held)


def test_a_program_in_another_network_runs_there(host: Host) -> None:
    """A fork would be where the zygote is."""
    unshare = shutil.which("unshare")
    tried = [unshare or "false", "--map-root-user", "--net", "true"]
    if unshare is None or subprocess.run(tried, check=False, capture_output=True).returncode:
        pytest.skip("no network namespace can be made here")
    code = "import os, socket; print(os.getppid(), len(socket.if_nameindex()))"
    command = host.command("-c", code, answer=host.acquire(**NO_TORCH))
    environment = {**host.environment, **NO_TORCH}
    parent, interfaces = run(command, environment).stdout.split()
    assert int(parent) == only_zygote(host).pid
    result = run([*tried[:-1], *command], environment)
    assert result.stdout.split() == [str(os.getpid()), "1"], (result.stderr, interfaces)
    assert "it is in another namespace (net, user)" in host.log()


def test_a_job_whose_zygote_has_gone_meanwhile_runs_afresh(
    host: Host, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(write("def double(payload):\n    return 2 * payload\n", "doubling.py").parent)
    job = jobs.Job("doubling:double", 21, (folder,), seconds=60)
    environment = Environment((sys.executable,), {**os.environ, **NO_TORCH})
    gone_since = Answer("ready", f"{host.folder}/zygote-gone", "token")
    refusing = Answer("ready", host.acquire(**NO_TORCH).socket, "not its token")
    for answer in (gone_since, refusing):
        monkeypatch.setattr(Client, "acquire", lambda *_, answer=answer: answer)
        monkeypatch.setenv("TENSORPOINT_RUNTIME_DIR", str(host.folder))
        outcome = asyncio.run(jobs.run_job(environment, job, int))
        assert (outcome.value, outcome.error, outcome.forked) == (42, "", False)


def test_a_job_that_is_never_forked_says_why(
    shared_host: Host, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(write("def double(payload):\n    return 2 * payload\n", "doubling.py").parent)
    job = jobs.Job("doubling:double", 21, (folder,), seconds=60)
    environment = Environment((sys.executable,), {**os.environ, "TP_BYTES": "\udcff"})
    monkeypatch.setenv("TENSORPOINT_RUNTIME_DIR", str(shared_host.folder))
    outcome = asyncio.run(jobs.run_job(environment, job, int))
    assert (outcome.value, outcome.forked) == (42, False)
    assert outcome.note == "a variable of its environment is not UTF-8"


def test_a_program_whose_zygote_refuses_runs_afresh(host: Host) -> None:
    answer = host.acquire(**NO_TORCH)
    refusing = Answer("ready", answer.socket, "not its token")
    result = run(host.command("-c", "print(5)", answer=refusing), host.environment)
    assert (result.returncode, result.stdout, result.stderr) == (0, "5\n", "")


def test_a_fork_in_development_mode_has_nothing_of_the_zygotes_to_warn_of(host: Host) -> None:
    answer = host.acquire((sys.executable, "-X", "dev"), **NO_TORCH)
    code = "import sys; print(sys.flags.dev_mode)"
    environment = {**host.environment, **NO_TORCH}
    command = host.command("-X", "dev", "-c", code, answer=answer)
    result = run(command, environment)
    assert (result.stdout, result.stderr) == ("True\n", "")
    assert only_zygote(host).runs == 1
    assert "ResourceWarning" not in host.log()


def test_a_clock_that_is_set_changes_nothing(write: Write) -> None:
    """The wall clock of a host and its zygotes goes a day ahead, and two days back."""
    ahead = write("0", "ahead")
    module = f"""
        import time
        was = time.time
        time.time = lambda: was() + float(open({str(ahead)!r}).read())
    """
    path = write(module, "packages/sitecustomize.py").parent
    variables = {
        "PYTHONPATH": f"{path}{os.pathsep}{NO_TORCH['PYTHONPATH']}",
        "TENSORPOINT_HOST_IDLE_S": "600",
        "TENSORPOINT_HOST_LOOK_S": "0.1",
    }
    with running_host(**variables) as host:
        assert host.acquire().state == "ready"
        first = only_zygote(host)
        for seconds in (86_400, -172_800):
            ahead.write_text(str(seconds))
            time.sleep(0.5)  # some looks at what is idle
            result = host.run("-c", "import time; print(time.time())")
            assert abs(float(result.stdout) - time.time() - seconds) < 60
            now = only_zygote(host)
            assert (now.pid, now.state) == (first.pid, "ready") and now.idle_s < 60


def test_logs_are_kept_short(write: Write, tmp_path: Path) -> None:
    logs = places.log_folder(tmp_path)
    lines = b"".join(b"line %d\n" % number for number in range(200_000))
    with (logs / "zygote-long.log").open("ab", buffering=0) as stream:
        stream.write(lines)
        for number in range(60):
            (logs / f"zygote-{number}.log").write_text("short")
            os.utime(logs / f"zygote-{number}.log", (number, number))
        places.tidy_logs(tmp_path)
        stream.write(b"after\n")
    text = (logs / "zygote-long.log").read_bytes()
    assert len(text) < 300_000 and text.endswith(b"line 199999\nafter\n")
    assert text.startswith(b"line ")
    left = {path.name for path in logs.iterdir()}
    assert left == {"zygote-long.log", *(f"zygote-{number}.log" for number in range(21, 60))}


def test_programs_with_very_many_modules_do_not_replace_each_others_zygotes(host: Host) -> None:
    """What two programs import is more than is kept: the zygote comes to rest all the same."""
    host.acquire(**NO_TORCH)
    environment = Environment((sys.executable,), {**host.environment, **NO_TORCH})

    pids: list[int | None] = []
    for _ in range(2):
        for program in ("one", "two"):
            names = [f"nothing_{program}_{number}" for number in range(6_000)]
            before = (None, only_zygote(host).pid)
            host.client.learn(environment, names)
            if len(pids) < 2:  # it is new to the host
                _wait_for_other(host, before)
            pids.append(only_zygote(host).pid)
    time.sleep(0.5)
    assert {pids[2], pids[3], only_zygote(host).pid} == {pids[1]}


def test_a_package_that_is_upgraded_under_a_live_host_is_never_the_old_one(
    host: Host, tmp_path: Path
) -> None:
    """A real environment, and pip."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = str(folder / "bin" / "python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
    program = ["-c", "import heavy, sys; print(heavy.value, heavy.part, len(sys.modules) > 200)"]
    environment = {name: v for name, v in host.environment.items() if name != "PYTHONPATH"}
    wanted = Environment((python,), environment, preload=("heavy",))

    def run_it() -> tuple[str, str]:
        answer = host.client.acquire(wanted, wait=True)
        assert answer.state == "ready", answer.note
        result = run([*stub_command([python], answer), *program], environment)
        assert result.returncode == 0, result.stderr
        return result.stdout, answer.note

    for number in (1, 2, 3):
        subprocess.run([*install, "--upgrade", _wheel(tmp_path, number)], check=True)
        printed, note = run_it()
        assert printed == f"{number} {number} True\n"
        assert ("has changed" in note) is (number > 1)
        assert run_it()[1] == ""


def _wait_for_other(host: Host, pids: tuple[int | None, ...]) -> None:
    eventually(lambda: only_zygote(host).pid not in pids, "another zygote")


def _wheel(folder: Path, number: int) -> str:
    path = folder / f"heavy-{number}-py3-none-any.whl"
    about = f"heavy-{number}.dist-info"
    files = {
        "heavy/__init__.py": f"value = {number}\nfrom heavy.part import part\n",
        "heavy/part.py": f"part = {number}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: heavy\nVersion: {number}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{about}/RECORD", "".join(f"{name},,\n" for name in files))
    return str(path)
