"""Logs of all processes on request, and none without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import Write
from tests.protocol.dap import STUBBED, Session, adapter_environment
from tests.protocol.samples import LAYERS

STOP_AT_B = [{"name": "layer:b", "condition": "step == 1"}]


def run(program: Path, cwd: Path, *options: str) -> str:
    """A session with a stop; returns what the adapter wrote on its standard error."""
    adapter = [sys.executable, "-m", "tensorpoint", "dap", *options]
    with Session(adapter=adapter, cwd=cwd) as session:
        session.launch(program, filters=[], functions=STOP_AT_B, **STUBBED)
        session.resume(session.stopped())
        assert session.exit_code() == 0
        session.request("disconnect")
        session.wait_closed()
        return session.stderr()


def test_every_process_logs_into_the_folder(write: Write, tmp_path: Path) -> None:
    logs = tmp_path / "new" / "logs"
    stderr = run(write(LAYERS), tmp_path, "--log-dir", str(logs))
    assert not stderr
    kinds = {path.name.partition("-")[0] for path in logs.iterdir()}
    assert {"tensorpoint.dap", "debugpy.adapter", "debugpy.launcher", "debugpy.server"} <= kinds
    (ours,) = logs.glob("tensorpoint.dap-*.log")
    text = ours.read_text(encoding="utf-8")
    assert "'command': 'launch'" in text and "layer:b" in text


def test_nothing_is_written_without_being_asked(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    assert not run(write(LAYERS), folder)
    assert not list(folder.iterdir())


def test_the_environment_may_name_the_folder(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "tensorpoint", "dap"],
        env={**adapter_environment(), "TENSORPOINT_LOG_DIR": str(tmp_path / "logs")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert len(list((tmp_path / "logs").glob("tensorpoint.dap-*.log"))) == 1


def test_a_folder_that_cannot_be_written_does_not_keep_one_from_debugging(
    write: Write, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    folder = str(tmp_path / "file" / "logs")
    stderr = run(write(LAYERS), tmp_path, "--log-dir", folder)
    assert stderr == f"tensorpoint dap: no logs: {folder}: {os.strerror(20)}\n"
