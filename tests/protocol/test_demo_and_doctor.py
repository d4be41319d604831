"""`tensorpoint demo` and `tensorpoint doctor` as a person runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorpoint.demo import PROGRAM

SERVER = Path(__file__).resolve().parents[2] / "server"


def tensorpoint(*arguments: str | Path, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tensorpoint", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": str(SERVER)},
        check=False,
    )


@pytest.fixture
def broken_python(tmp_path: Path) -> Path:
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\necho no such thing >&2\nexit 9\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_demo_shows_the_stop_the_fix_and_a_clean_run() -> None:
    done = tensorpoint("demo", timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    text = done.stdout
    line = PROGRAM.read_text(encoding="utf-8").splitlines().index("        log_p = p.log()")
    stop = text.index("NaN in the output of penalty (ConfidencePenalty)")
    assert f"{PROGRAM}:{line + 1} in forward" in text[stop:]
    fix = text.index("-        log_p = p.log()\n+        log_p = sharp.log_softmax(dim=-1)\n", stop)
    clean = text.index("Clean:", fix)
    assert "step  39" in text[fix:clean]
    assert "nan" not in text[fix:clean]


def test_doctor_launches_and_tells_versions() -> None:
    done = tensorpoint("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    for label in ("platform", "torch", "transformers", "CUDA runtime", "driver", "attach by pid"):
        assert f"  {label} " in done.stdout
    assert "  launch         yes  the agent answers" in done.stdout
    assert "not supported here" in done.stdout


def test_doctor_as_json() -> None:
    done = tensorpoint("doctor", "--json")
    findings = json.loads(done.stdout)
    assert findings["launch"]["works"] is True
    assert findings["ours"]["debugpy"]
    assert findings["program"]["torch"]["version"]
    assert isinstance(findings["limits"], list)


def test_doctor_says_that_an_interpreter_does_not_run(broken_python: Path) -> None:
    done = tensorpoint("doctor", "--python", broken_python)
    assert done.returncode == 1
    assert "ended with status 9: no such thing" in done.stdout
    assert "  launch         no  the interpreter does not run" in done.stdout


def test_doctor_of_an_interpreter_without_torch(tmp_path: Path) -> None:
    # A bare environment: the interpreter of this one without what is installed for it.
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n', encoding="utf-8")
    bare.chmod(0o755)
    done = tensorpoint("doctor", "--python", bare)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torch can't be imported (No module named 'torch')" in done.stdout


def test_doctor_of_a_missing_interpreter() -> None:
    done = tensorpoint("doctor", "--python", "no-such-python")
    assert done.returncode == 2
    assert "no interpreter 'no-such-python'" in done.stderr
