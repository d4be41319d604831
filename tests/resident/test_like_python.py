"""A program from a zygote can't tell that it is: everything it observes is as with `python`."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write
from tests.resident.hosts import Host

pytestmark = pytest.mark.xdist_group("resident")

FACTS = Path(__file__).parent / "programs" / "facts.py"
#: What a fork can't have as a fresh interpreter has it: transformers' and torch's imports add
#: filters of warnings and an importer, and the program may not have imported them yet.
DIFFERENT = {"warning_filters", "importers"}


def observed(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    "options", [[], ["-u"], ["-X", "frozen_modules=off"]], ids=["plain", "-u", "-X"]
)
def test_all_facts_are_those_of_a_plain_run(
    shared_host: Host, tmp_path: Path, options: list[str]
) -> None:
    arguments = [*options, str(FACTS), "a", "b c", "--torch"]
    runs = (shared_host.run, shared_host.plain)
    seen, plain = (observed(run(*arguments, cwd=tmp_path, umask=0o37)) for run in runs)
    facts, expected = seen["facts"], plain["facts"]
    assert len(facts) >= 55
    wrong = {
        name: (facts.get(name), value)
        for name, value in expected.items()
        if facts.get(name) != value and name not in DIFFERENT
    }
    assert not wrong, json.dumps(wrong, indent=1)


def test_what_is_random_differs_from_run_to_run(shared_host: Host) -> None:
    one, other = (observed(shared_host.run(str(FACTS), "--torch"))["differing"] for _ in range(2))
    assert one.keys() == other.keys() and len(one) == 6
    assert not {name for name in one if one[name] == other[name]}


#: Programs of which status, output and errors are compared with those of a plain run.
PROGRAMS = sorted((FACTS.parent / "plain").glob("*.py"))
#: What torch and multiprocessing need to work in a fork; each prints what it should.
WORKING = sorted((FACTS.parent / "torch").glob("*.py"))


#: Those that no formatter would leave alone.
UNREADABLE = {
    "a null byte": b"x = 1\0\n",
    "an encoding": b"# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\n",
    "a syntax error": b"print(1)\nx = = 2\n",
    "no newline": b"if True:\n\tprint(2)",
    "crlf": b"print(1)\r\n1 / 0\r\n",
    "bom": b"\xef\xbb\xbfprint(1)\n1 / 0\n",
    "nothing": b"",
}


@pytest.mark.parametrize("program", PROGRAMS, ids=[path.stem for path in PROGRAMS])
def test_status_and_output_are_those_of_a_plain_run(
    shared_host: Host, tmp_path: Path, program: Path
) -> None:
    _compare(shared_host, tmp_path, program.read_bytes())


@pytest.mark.parametrize("name", UNREADABLE)
def test_odd_files_are_read_as_python_does(shared_host: Host, tmp_path: Path, name: str) -> None:
    _compare(shared_host, tmp_path, UNREADABLE[name])


def _compare(host: Host, folder: Path, program: bytes) -> None:
    (folder / "program.py").write_bytes(program)
    given: dict[str, Any] = {"cwd": folder, "input": "some\ntext"}
    arguments = ("program.py", "a", "b c")
    seen, plain = host.run(*arguments, **given), host.plain(*arguments, **given)
    assert (seen.returncode, seen.stdout) == (plain.returncode, plain.stdout), seen.stderr
    assert _without_addresses(seen.stderr) == _without_addresses(plain.stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "package", "x"),
        ("-m", "package.module", "x"),
        ("-m", "nowhere", "x"),
        ("-mpackage.module", "-v"),
        ("-c", "import sys; print(sys.argv, sys.path[0]); nothing", "-m", "x"),
        ("-uc", "print(__name__, sorted(globals()), __loader__)"),
        ("missing.py",),
        ("package",),
        ("-",),
        ("-q", "link.py"),
        ("./link.py",),
        ("../there/link.py",),
        ("compiled.pyc",),
    ],
    ids=" ".join,
)
def test_all_ways_to_name_a_program(
    shared_host: Host, write: Write, arguments: tuple[str, ...]
) -> None:
    text = (
        "import sys\n"
        "print(__name__, __file__, __package__, __spec__ and __spec__.name)\n"
        "print(sys.argv, sys.path[0])\n"
        "1 / 0\n"
    )
    write("", "there/package/__init__.py")
    write(text, "there/package/__main__.py")
    write(text, "there/package/module.py")
    (write(text, "elsewhere/real.py").parent.parent / "there" / "link.py").symlink_to(
        "../elsewhere/real.py"
    )
    cwd = write("", "there/x").parent
    compiled = (
        f"import py_compile; py_compile.compile('package/module.py', {str(cwd / 'compiled.pyc')!r})"
    )
    assert shared_host.plain("-c", compiled, cwd=cwd).returncode == 0
    given: dict[str, Any] = {"cwd": cwd, "input": "import sys; print(sys.argv, sys.path[0])"}
    seen, plain = shared_host.run(*arguments, **given), shared_host.plain(*arguments, **given)
    assert (seen.returncode, seen.stdout) == (plain.returncode, plain.stdout), seen.stderr
    assert seen.stderr == plain.stderr


@pytest.mark.parametrize("program", WORKING, ids=[path.stem for path in WORKING])
def test_torch_and_its_processes_work(shared_host: Host, tmp_path: Path, program: Path) -> None:
    seen, plain = (run(str(program), cwd=tmp_path) for run in (shared_host.run, shared_host.plain))
    assert plain.returncode == 0 and plain.stdout, plain.stderr
    assert (seen.returncode, seen.stdout) == (0, plain.stdout), seen.stderr
    assert _without_times(seen.stderr) == _without_times(plain.stderr)


def _without_addresses(text: str) -> str:
    """Addresses and process ids, which differ anyway."""
    return re.sub(r"0x[0-9a-f]+|\(pid=\d+\)|Thread-\d+", "", text)


def _without_times(text: str) -> list[str]:
    """Without the lines that the profiler dates."""
    return [line for line in text.splitlines() if not line.startswith("USDT:")]
