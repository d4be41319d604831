"""The distributions: complete, and useful where nothing else is installed, torch included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

# Built and installed once: all of these in one worker.
pytestmark = pytest.mark.xdist_group("dist")

ROOT = Path(__file__).parents[2]
#: A stand-in of torch.
STUB = ROOT / "tests" / "protocol" / "stub" / "site-packages"
PACKAGES = (ROOT / "server" / "tensorpoint", ROOT / "adapters" / "tensorpoint_adapters")


def _run(*command: str | Path, cwd: Path, timeout: float = 240) -> str:
    """Run to the end and return stdout; a failure shows both streams."""
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False
    )
    shown = f"{command}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
    assert done.returncode == 0, f"exit status {done.returncode}: {shown}"
    return done.stdout


@dataclass(frozen=True)
class Dists:
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def dists(tmp_path_factory: pytest.TempPathFactory) -> Dists:
    """As `make dist` builds them: the wheel from the sdist, which proves the sdist complete."""
    out = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--outdir", out, cwd=ROOT)
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return Dists(wheel, sdist)


@pytest.fixture(scope="module")
def installed(dists: Dists, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of an environment with the wheel and its dependencies."""
    env = tmp_path_factory.mktemp("clean") / "env"
    venv.create(env, with_pip=True)
    _run(
        env / "bin" / "python",
        *("-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", dists.wheel),
        cwd=env,
    )
    return env / "bin"


def _sources(above: Path | None = None) -> set[str]:
    """The files of both packages, below where they are imported from, or below `above`."""
    return {
        path.relative_to(above or package.parent).as_posix()
        for package in PACKAGES
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_whole_package_and_nothing_else(dists: Dists):
    with zipfile.ZipFile(dists.wheel) as archive:
        names = set(archive.namelist())
    packaged = {name for name in names if ".dist-info/" not in name}
    assert packaged == _sources()
    assert {"tensorpoint/py.typed", "tensorpoint_adapters/spec.py"} <= packaged
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_sdist_holds_what_make_needs(dists: Dists):
    with tarfile.open(dists.sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert _sources(ROOT) <= names
    wanted = {"LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml"}
    assert wanted <= names
    assert "tests/dist/test_wheel.py" in names


def test_installing_it_brings_no_torch(installed: Path):
    listed = json.loads(
        _run(installed / "python", "-m", "pip", "list", "--format=json", cwd=installed)
    )
    names = {entry["name"].lower() for entry in listed}
    assert {"tensorpoint", "debugpy"} <= names
    assert not names & {"torch", "transformers", "numpy"}


def test_the_script_tells_its_version(installed: Path, dists: Dists):
    version = dists.wheel.name.split("-")[1]
    assert version in _run(installed / "tensorpoint", "--version", cwd=installed)
    assert version in _run(installed / "python", "-m", "tensorpoint", "--version", cwd=installed)


def test_doctor_reports_without_torch(installed: Path):
    report = _run(installed / "tensorpoint", "doctor", cwd=installed)
    assert "debugpy" in report
    assert "torch" in report


def _ran(installed: Path, code: str, *options: str, **variables: str) -> tuple[int, str, str]:
    """Status, stdout and stderr of `tensorpoint run` with a program of this text."""
    program = installed.parent / "program.py"
    program.write_text(code)
    done = subprocess.run(
        [installed / "tensorpoint", "run", *options, program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_program_that_needs_torch_is_told_where_to_find_it(installed: Path):
    status, _, told = _ran(installed, "import torch\n")
    assert status == 1 and "No module named 'torch'" in told
    assert told.endswith("name its interpreter: tensorpoint run --python PATH\n")
    status, printed, told = _ran(installed, "print('needs none')\n")
    assert (status, printed) == (0, "needs none\n") and "interpreter" not in told


def test_a_program_is_stopped_by_the_agent_of_the_wheel(installed: Path):
    code = (
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x\n"
        "print(Net()(5))\n"
    )
    options = ("--on", "layer:Net", "--on-stop", "continue", "--json")
    status, stopped, printed = _ran(installed, code, *options, PYTHONPATH=str(STUB))
    assert status == 3, printed
    stop = json.loads(stopped)
    assert (stop["event"], stop["module_type"], stop["line"]) == ("layer.entry", "Net", 5)
    assert printed == "5\n"


def test_the_adapter_answers_initialize_with_its_filters(installed: Path):
    with subprocess.Popen(
        [installed / "tensorpoint", "dap"],
        cwd=installed,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as adapter:
        assert adapter.stdin and adapter.stdout and adapter.stderr
        try:
            arguments = {"adapterID": "tensorpoint", "clientID": "test"}
            request = {"seq": 1, "type": "request", "command": "initialize", "arguments": arguments}
            body = json.dumps(request).encode()
            adapter.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            adapter.stdin.flush()
            answer = _response(adapter.stdout)
            assert answer is not None, f"no answer; stderr: {adapter.stderr.read().decode()}"
            assert answer["success"], answer
            filters = {f["filter"]: f for f in answer["body"]["exceptionBreakpointFilters"]}
            assert {"uncaught", "nonfinite", "tensorpoint"} <= set(filters)
            assert filters["nonfinite"]["label"] == "NaN/Inf"
            assert filters["nonfinite"]["default"] is True

            # An editor that goes away leaves no process behind.
            adapter.stdin.close()
            adapter.wait(timeout=120)
        finally:
            adapter.kill()


def _response(stream: IO[bytes]) -> dict[str, Any] | None:
    """The next response; events before it are passed over. None at the end of the stream."""
    while True:
        length = 0
        while (line := stream.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if not length:
            return None
        message = json.loads(stream.read(length))
        if message["type"] == "response":
            return message
