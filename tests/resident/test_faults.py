"""Whatever dies at whatever time: no orphan stays, and the next program runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tensorpoint.resident.client import NoHost
from tensorpoint.resident.messages import Environment, ZygoteStatus
from tensorpoint.wire import pack
from tests.conftest import Write
from tests.protocol.dap import DEADLINE, eventually
from tests.protocol.processes import processes_with
from tests.resident.hosts import Host, run, running_host, start

pytestmark = pytest.mark.xdist_group("resident")

#: Without torch in its way a zygote starts in a moment: what is imported isn't the point here.
NO_TORCH: dict[str, Any] = {
    "PYTHONPATH": str(Path(__file__).parents[1] / "protocol" / "stub" / "site-packages")
}
LOOP = "import time\nprint('up', flush=True)\nwhile True:\n    time.sleep(0.02)\n"


def only_zygote(host: Host) -> ZygoteStatus:
    (zygote,) = host.status().zygotes
    return zygote


def begin(host: Host, program: Path, **options: Any) -> subprocess.Popen[str]:
    """Start a program that says "up", and wait for that."""
    process = subprocess.Popen(
        host.command(str(program), answer=host.acquire(**NO_TORCH)),
        env={**host.environment, **NO_TORCH, **options.pop("env", {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def runs_again(host: Host) -> None:
    answer = host.acquire(**NO_TORCH)
    assert answer.state == "ready", answer
    result = host.run("-c", "print(5)", env=NO_TORCH)
    assert (result.returncode, result.stdout) == (0, "5\n"), result.stderr


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists() or "Z" in _state(pid)


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


def test_a_killed_zygote_takes_its_programs_along_and_is_replaced(host: Host, write: Write) -> None:
    program = write("import subprocess\nsubprocess.Popen(['sleep', '99'])\n" + LOOP)
    process = begin(host, program, env={"TP_MARK": str(program)})
    eventually(
        lambda: any("sleep" in line for line in processes_with("TP_MARK", str(program)).values()),
        "the program's child",
    )
    zygote = only_zygote(host)
    assert zygote.pid is not None
    os.kill(zygote.pid, signal.SIGKILL)
    assert process.wait(DEADLINE) == 1
    assert process.stderr is not None
    assert "the resident process has ended, and the program with it" in process.stderr.read()
    (child,) = zygote.running
    eventually(lambda: gone(child), "the program's end")
    eventually(lambda: not processes_with("TP_MARK", str(program)), "the program's child's end")
    eventually(lambda: not only_zygote(host).pid, "the host's noticing")
    runs_again(host)


def test_a_killed_host_leaves_programs_running_and_nothing_after_them(
    host: Host, write: Write
) -> None:
    process = begin(host, write(LOOP))
    status = host.status()
    (zygote,) = status.zygotes
    os.kill(status.pid, signal.SIGKILL)
    time.sleep(0.3)
    assert process.poll() is None and zygote.pid is not None and not gone(zygote.pid)
    with pytest.raises(NoHost):
        host.status()
    replaced = start(host)
    try:
        runs_again(host)
        process.terminate()
        assert process.wait(DEADLINE) == -signal.SIGTERM
        eventually(lambda: gone(zygote.pid or 0), "the old zygote's end, with its last child")
        left = {path.name for path in host.folder.glob("zygote-*") if path.suffix != ".sh"}
        assert left == {Path(host.acquire(**NO_TORCH).socket).name}
    finally:
        host.client.stop()
        replaced.wait(DEADLINE)


def test_a_program_and_its_stub_that_die_at_once_are_no_fault_of_the_zygote(
    host: Host, write: Write
) -> None:
    process = begin(host, write(LOOP))
    zygote = only_zygote(host)
    (child,) = zygote.running
    assert zygote.pid is not None
    os.kill(zygote.pid, signal.SIGSTOP)  # so that it hears of both together, in this order
    try:
        os.kill(child, signal.SIGKILL)
        eventually(lambda: gone(child), "the program's end")
        process.kill()
        process.wait()
    finally:
        os.kill(zygote.pid, signal.SIGCONT)
    runs_again(host)
    assert only_zygote(host).pid == zygote.pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_program_that_dies_is_a_status(host: Host, write: Write, number: int) -> None:
    process = begin(host, write(LOOP))
    (child,) = only_zygote(host).running
    os.kill(child, number)
    assert process.wait(DEADLINE) == -number
    runs_again(host)


def test_a_program_that_ignores_sigterm_is_killed_with_its_stub(host: Host, write: Write) -> None:
    ignoring = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + LOOP
    process = begin(host, write(ignoring))
    (child,) = only_zygote(host).running
    process.terminate()
    time.sleep(0.3)
    assert process.poll() is None
    process.kill()
    eventually(lambda: gone(child), "the program's end")
    eventually(lambda: not only_zygote(host).running, "the host's knowing")


def test_a_daemon_survives_and_the_program_ends_as_it_would(host: Host, write: Write) -> None:
    code = (
        "import os, time\nif os.fork():\n    os._exit(3)\nos.setsid()\n"
        "print(os.getpid(), flush=True)\nos.close(1)\nos.close(2)\ntime.sleep(99)\n"
    )
    host.acquire(**NO_TORCH)
    result = host.run(str(write(code)), env=NO_TORCH)
    assert result.returncode == 3
    pid = int(result.stdout)
    assert not gone(pid)
    os.kill(pid, signal.SIGKILL)


def test_a_program_that_closes_its_streams_ends_well(host: Host, write: Write) -> None:
    code = "import os\nprint('up', flush=True)\nos.closerange(0, 200)\n"
    assert begin(host, write(code)).wait(DEADLINE) == 0
    runs_again(host)


def test_forty_programs_at_once_all_run_as_forks(host: Host) -> None:
    answer = host.acquire(**NO_TORCH)
    command = host.command("-c", "import os; print(os.getppid())", answer=answer)
    processes = [
        subprocess.Popen(
            command, env={**host.environment, **NO_TORCH}, stdout=subprocess.PIPE, text=True
        )
        for _ in range(40)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert outputs == [f"{only_zygote(host).pid}\n"] * 40


def test_twenty_sessions_leak_nothing(host: Host) -> None:
    runs_again(host)
    zygote = only_zygote(host).pid
    host_pid = host.status().pid

    def held() -> list[int]:
        return [
            len(os.listdir(f"/proc/{pid}/{what}"))
            for pid in (zygote, host_pid)
            for what in ("fd", "task")
        ]

    def given_back(before: list[int]) -> bool:
        return all(now <= then for now, then in zip(held(), before, strict=True))

    def memory() -> int:
        """In KiB, of the zygote's own: the proportional share changes with other processes."""
        status = Path(f"/proc/{zygote}/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0])

    def settled() -> bool:
        return only_zygote(host).running == ()

    eventually(settled, "the first one's end")
    before, shm, memory_before = held(), set(os.listdir("/dev/shm")), memory()
    for _ in range(20):
        runs_again(host)
    eventually(settled, "the last one's end")
    # Not the same: the connection that has just asked may have been open `before`.
    eventually(lambda: given_back(before), "what the last one held is given back")
    # Tests that run beside this one have theirs there, for a moment; kept weights stay.
    kept = {os.path.basename(pack.folder())}
    eventually(lambda: set(os.listdir("/dev/shm")) <= shm | kept, "nothing new in /dev/shm")
    assert memory() < memory_before + 3 * 1024
    assert only_zygote(host).pid == zygote and only_zygote(host).runs == 21


def test_a_package_that_changes_is_never_a_stale_one(host: Host, write: Write) -> None:
    """Imported by a zygote from a folder on the path, then edited: the next program has the new."""
    module = write("value = 1\n", "packages/heavy.py")
    path = {"PYTHONPATH": f"{module.parent}{os.pathsep}{NO_TORCH['PYTHONPATH']}"}
    environment = {**host.environment, **path}
    wanted = Environment((sys.executable,), environment, preload=("heavy",))
    program = ["-c", "import heavy; print(heavy.value)"]
    for value in (1, 2):
        module.write_text(f"value = {value}\n")
        os.utime(module, ns=(value, value))
        answer = host.client.acquire(wanted, wait=True)
        assert answer.state == "ready"
        assert (f"{module} has changed" in answer.note) is (value == 2)
        result = run(host.command(*program, answer=answer), environment)
        assert result.stdout == f"{value}\n", result.stderr


def test_a_module_off_the_path_is_imported_ahead_and_its_folder_stays_off(
    host: Host, write: Write
) -> None:
    """As the tracer of shapes is: nothing else of its folder may get before the user's."""
    module = write("import os\nwhere = os.getpid()\n", "door/ahead_of_jobs.py")
    environment = {**host.environment, **NO_TORCH}
    name = f"{module.with_suffix('')}:where"
    answer = host.client.acquire(
        Environment((sys.executable,), environment, preload=(name,)), wait=True
    )
    assert (answer.state, answer.note) == ("ready", "")
    shown = "sys.modules['ahead_of_jobs'].where == os.getppid(), 'door' in str(sys.path)"
    program = ["-c", f"import os, sys; print({shown})"]
    result = run(host.command(*program, answer=answer), environment)
    assert result.stdout == "True False\n", result.stderr


@pytest.mark.parametrize(
    ("changed", "options"),
    [({"PYTHONHASHSEED": "0"}, []), ({"HF_HOME": "/x"}, []), ({}, ["-O"]), ({}, ["-W", "error"])],
)
def test_another_environment_gets_another_zygote(
    host: Host, changed: dict[str, Any], options: list[str]
) -> None:
    one = host.acquire(**NO_TORCH)
    other = host.acquire((sys.executable, *options), **NO_TORCH, **changed)
    assert one.state == other.state == "ready" and one.socket != other.socket
    # A stub that comes with another environment than was asked for runs, but not as a fork.
    code = "import os, sys; print(os.getppid(), sys.flags.optimize, os.environ.get('HF_HOME'))"
    before = sum(zygote.runs for zygote in host.status().zygotes)
    elsewhere = {**host.environment, **NO_TORCH, "HF_HOME": "/elsewhere"}
    result = run(host.command("-c", code, answer=one), elsewhere)
    assert result.stdout.split()[1:] == ["0", "/elsewhere"]
    assert sum(zygote.runs for zygote in host.status().zygotes) == before + 1
    assert "other values of" in host.log()


def test_an_interpreter_that_does_not_start_is_a_reason(host: Host, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho it is broken >&2\nexit 3\n")
    broken.chmod(0o700)
    answer = host.acquire((str(broken),))
    assert answer.state == "unavailable"
    assert answer.note == "the resident process did not start: it ended with status 3: it is broken"
    assert not [*host.folder.glob("zygote-*")]
    assert host.acquire(("/nowhere/python",)).note == "there is no interpreter '/nowhere/python'"
    assert "need a fresh interpreter" in host.acquire((sys.executable, "-i")).note
    assert "is not UTF-8" in host.acquire(TP_ODD="\udcff").note


def test_an_interpreter_that_is_a_script_around_one_ends_too(host: Host, tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\n{sys.executable} "$@"\nexit $?\n')
    wrapper.chmod(0o700)
    answer = host.acquire((str(wrapper),), **NO_TORCH, TP_MARK=str(wrapper))
    assert answer.state == "ready", answer.note
    assert len(processes_with("TP_MARK", str(wrapper))) == 2
    host.client.stop()
    eventually(lambda: not processes_with("TP_MARK", str(wrapper)), "the end of both")


def test_an_import_that_starts_a_thread_is_not_forked(host: Host, write: Write) -> None:
    module = write(
        "import threading as t\nt.Thread(target=t.Event().wait, daemon=True).start()\n",
        "packages/threaded.py",
    )
    path = f"{module.parent}{os.pathsep}{NO_TORCH['PYTHONPATH']}"
    variables = {**host.environment, "PYTHONPATH": path}
    answer = host.client.acquire(
        Environment((sys.executable,), variables, ("threaded",)), wait=True
    )
    assert answer.state == "unavailable" and "has started the thread" in answer.note
    # Where there is a zygote already, that goes on, and the module is named each time.
    plain = Environment((sys.executable,), {**variables, "HF_HOME": "/x"})
    assert host.client.acquire(plain, wait=True).state == "ready"
    asking = Environment(plain.python, plain.variables, ("json", "threaded"))
    for _ in range(2):
        answer = host.client.acquire(asking, wait=True)
        assert answer.state == "ready"
        assert "threaded can't be imported ahead (an import has started the thread" in answer.note


def test_only_this_user_can_reach_it(host: Host) -> None:
    answer = host.acquire(**NO_TORCH)
    assert stat.S_IMODE(host.folder.stat().st_mode) == 0o700
    for path in (host.folder / "host", answer.socket, host.folder / "token"):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600, path
    assert stat.S_IMODE(os.stat(answer.executable).st_mode) == 0o700
    # A wrong token is refused by both, and so is what is no message at all.
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(host.folder / "host"))
        connection.sendall(b'{"token": "x", "command": "stop"}\n')
        assert json.loads(connection.recv(1000))["note"] == "wrong token"
    bad = [
        repr({"token": "x", "argv": ("-c", "1"), "files": ()}).encode(),
        b"__import__('os').abort()",
        b"{" * 3000,
    ]
    for body in (*(b"%d\n%s" % (len(text), text) for text in bad), b"99999999999\n", b"x" * 40):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(answer.socket)
            connection.sendall(body)
            connection.settimeout(10)
            with contextlib.suppress(ConnectionError):
                assert connection.recv(10) == b""
    runs_again(host)


def test_a_stub_without_a_zygote_is_the_interpreter(host: Host) -> None:
    command = host.command(
        "-c", "import sys; print(sys.argv)", "a", answer=host.acquire(**NO_TORCH)
    )
    host.client.stop()
    result = run(command, host.environment)
    assert (result.returncode, result.stdout) == (0, "['-c', 'a']\n"), result.stderr


def test_idle_zygotes_and_then_the_host_end(write: Write) -> None:
    with running_host(TENSORPOINT_HOST_IDLE_S="1") as host:
        assert host.acquire(**NO_TORCH).state == "ready"
        zygote = only_zygote(host).pid
        assert zygote is not None
        eventually(lambda: gone(zygote), "the zygote's end")

        def over() -> bool:
            return not (host.folder / "host").exists()

        eventually(over, "the host's end")


def test_a_host_whose_folder_was_cleared_away_ends_after_its_programs(write: Write) -> None:
    with running_host(TENSORPOINT_HOST_LOOK_S="0.2") as host:
        program = begin(host, write(LOOP))
        status = host.status()
        (host.folder / "host").unlink()
        time.sleep(1)
        assert program.poll() is None and not gone(status.pid)
        program.kill()
        program.wait()
        eventually(lambda: gone(status.pid), "the end of the host")


def test_too_much_memory_is_given_back(write: Write) -> None:
    with running_host(TENSORPOINT_HOST_MEMORY_MIB="1", TENSORPOINT_HOST_LOOK_S="0.5") as host:
        host.acquire(**NO_TORCH)
        host.acquire(**NO_TORCH, HF_HOME="/x")
        eventually(lambda: len(host.status().zygotes) == 1, "the older one's end")
        assert host.acquire(**NO_TORCH, HF_HOME="/x").state == "ready"
