"""What debugpy does at a start that only takes time is left out, with the real debugpy."""

from __future__ import annotations

import subprocess
import sys

# pydevd keeps its state in modules: each in a process of its own.
_PAUSE = """
import socket, sys, time
from debugpy.server import api
import pydevd
from tensorpoint.resident.forking.debugger import _connect_without_pause

slept = []
time.sleep, sleep = slept.append, time.sleep
debugger, (one, other), (third, fourth) = pydevd.PyDB(), socket.socketpair(), socket.socketpair()
debugger.initialize_network(one)
assert slept == [0.1], slept
slept.clear()
_connect_without_pause()
debugger.initialize_network(third)
assert not slept and pydevd.time is time, slept
assert debugger.reader.is_alive() and debugger.writer.is_alive()
"""
_REPORT = """
import tensorpoint.dap.preloaded
from debugpy.common import log

made = []
log.get_environment_description = lambda header: made.append(header) or header
log.describe_environment("nobody keeps a log")
assert not made
log.log_dir = "somewhere"
log.describe_environment("somebody does")
assert made == ["somebody does"], made
"""


def test_pydevd_does_not_sleep_once_its_threads_run() -> None:
    _run(_PAUSE)


def test_a_report_on_the_environment_is_made_for_a_log_alone() -> None:
    _run(_REPORT)


def _run(program: str) -> None:
    # Ended by hand: pydevd's threads wait for what is never sent.
    ended = f"{program}\nimport os\nos._exit(0)\n"
    done = subprocess.run(
        [sys.executable, "-c", ended], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
