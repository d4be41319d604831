"""`tensorpoint run` with a resident process: the same, but sooner, and only where one runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Write
from tests.protocol.dap import DEADLINE, eventually
from tests.protocol.samples import GATE
from tests.resident.hosts import SERVER, Host, run

pytestmark = pytest.mark.xdist_group("resident")
RUN = [sys.executable, "-m", "tensorpoint", "run"]


def environment(host: Host) -> dict[str, str]:
    variables = {**host.environment, "PYTHONPATH": str(SERVER)}
    del variables["TENSORPOINT_RESIDENT"]
    return variables


def test_a_stop_is_reported_and_streams_are_the_callers(shared_host: Host, write: Write) -> None:
    # What is there before the program has imported it tells a fork from a fresh interpreter.
    program = write(
        "import sys\nprint('read', sys.stdin.read(), sys.argv[1:], 'torch' in sys.modules)\n" + GATE
    )
    shared_host.acquire(PYTHONPATH=str(SERVER))
    for options, forked in (([], 1), (["--no-resident"], 0)):
        command = [*RUN, "--json", *options, str(program), "a", "b c"]
        with shared_host.counting_runs() as runs:
            result = run(command, environment(shared_host), input="text")
        assert result.returncode == 3, result.stderr
        assert f"read text ['a', 'b c'] {bool(forked)}\n" in result.stderr
        (stop,) = map(json.loads, result.stdout.splitlines())
        assert stop["module"] == "gate"
        assert runs == [forked]


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(5)", 5), ("import os; os.abort()", -signal.SIGABRT), ("1 / 0", 1)],
)
def test_the_status_is_the_programs(
    shared_host: Host, write: Write, code: str, status: int
) -> None:
    shared_host.acquire(PYTHONPATH=str(SERVER))
    with shared_host.counting_runs() as runs:
        result = run([*RUN, str(write(code))], environment(shared_host))
    assert result.returncode in (status, 128 - status), result.stderr
    assert runs == [1]


def test_signals_reach_the_program(shared_host: Host, write: Write) -> None:
    program = write(
        """\
        import os, signal, sys, time
        signal.signal(signal.SIGUSR1, lambda *_: print("got it", flush=True))
        print(os.getpid(), flush=True)
        while True:
            time.sleep(0.02)
        """
    )
    shared_host.acquire(PYTHONPATH=str(SERVER))
    process = subprocess.Popen(
        [*RUN, str(program)], env=environment(shared_host), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "got it\n"
    process.terminate()
    process.wait(DEADLINE)
    eventually(lambda: not Path(f"/proc/{child}").exists(), "its end")


def test_no_host_is_started_by_a_run(host: Host, write: Write) -> None:
    host.client.stop()
    result = run([*RUN, str(write("print('out')"))], environment(host))
    assert (result.returncode, result.stdout) == (0, "out\n"), result.stderr
    assert "resident" not in result.stderr
    assert not os.path.exists(host.folder / "host")
