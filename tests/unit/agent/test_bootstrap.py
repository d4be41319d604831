"""The package loads into a program by file location or by its texts, and changes nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tensorpoint
import tensorpoint_adapters
from tensorpoint.wire import WIRE_VERSION
from tests.protocol.pythons import other_pythons

PACKAGE = Path(tensorpoint.__file__).parent
ADAPTERS = Path(tensorpoint_adapters.__file__).parent
BOOTSTRAP = (PACKAGE / "agent" / "bootstrap.py").read_text(encoding="utf-8")
PLAN = json.dumps(
    {
        "version": WIRE_VERSION,
        "tensorpoints": [
            {"id": 1, "kind": "condition", "condition": 'nonfinite("*") and step > 3', "module": ""}
        ],
    }
)

#: What the program does: it loads the agent twice, as an adapter would, and says what changed.
PROGRAM = """
import importlib, json, sys
given = json.load(sys.stdin)
path, before = list(sys.path), set(sys.modules)
namespace = {"__name__": "_tensorpoint_bootstrap"}
exec(compile(given["bootstrap"], "<bootstrap>", "exec"), namespace)
boot = namespace["boot"]
greetings = [json.loads(boot(given["folder"], given["plan"], given["sources"])) for _ in range(2)]
try:
    import tensorpoint
    public = True
except ImportError:
    public = False
for name in given["also"]:
    importlib.import_module(name)
modules = {
    name: getattr(module, "__file__", None)
    for name, module in list(sys.modules.items()) if name not in before
}
print(json.dumps({
    "greetings": greetings, "path": sys.path == path, "public": public, "modules": modules,
}))
"""


def sources() -> dict[str, str]:
    return {
        path.relative_to(above).as_posix(): path.read_text(encoding="utf-8")
        for folder, above in ((PACKAGE, PACKAGE), (ADAPTERS, ADAPTERS.parent))
        for path in folder.rglob("*.py")
    }


def booted(
    folder: str | Path = PACKAGE,
    texts: dict[str, str] | None = None,
    python: str = sys.executable,
    also: tuple[str, ...] = (),
) -> dict[str, Any]:
    given = {
        "bootstrap": BOOTSTRAP,
        "folder": str(folder),
        "plan": PLAN,
        "sources": texts,
        "also": also,
    }
    # -S: no site-packages, -I: neither environment nor folder of the script.
    done = subprocess.run(
        [python, "-S", "-I", "-B", "-c", PROGRAM],
        check=False,
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


ROOMS = (
    *(f"_tensorpoint.agent.{path.stem}" for path in (PACKAGE / "agent").glob("[a-z]*.py")),
    *(
        f"_tensorpoint.agent.watches.{path.stem}"
        for path in (PACKAGE / "agent" / "watches").glob("[a-z]*.py")
    ),
    *(
        f"_tensorpoint.{room}.{path.stem}"
        for room in ("conditions", "wire")
        for path in (PACKAGE / room).glob("[a-z]*.py")
        if path.stem not in ("feasible", "codec", "plan")  # only our own processes load these
    ),
    "_tensorpoint.wire.plan",
    "_tensorpoint_adapters",
    *(f"_tensorpoint_adapters.{path.stem}" for path in ADAPTERS.glob("[a-z]*.py")),
)


def check(said: dict[str, Any]) -> None:
    first, second = said["greetings"]
    assert "error" not in first, first
    assert 0 <= first.pop("age") <= second.pop("age")
    assert first == second
    assert first["armed"] == 1 and first["torch"] is None
    assert said["path"] and not said["public"]
    assert "_tensorpoint.agent.requests" in said["modules"]


@pytest.mark.parametrize("by", ["location", "texts"])
def test_it_loads_under_a_private_name_and_leaves_the_path_alone(by: str) -> None:
    said = booted() if by == "location" else booted("/not/there", sources())
    check(said)
    names = [name for name in said["modules"] if name.startswith("tensorpoint")]
    assert names == []


@pytest.mark.parametrize("by", ["location", "texts"])
def test_its_files_are_known_by_their_place(by: str) -> None:
    folder = str(PACKAGE) if by == "location" else "/not/there"
    beside = str(ADAPTERS) if by == "location" else "/not/tensorpoint_adapters"
    texts = None if by == "location" else sources()
    said = booted(folder, texts, also=("_tensorpoint_adapters",))
    assert said["modules"]["_tensorpoint_adapters.spec"] == f"{beside}/spec.py"
    for name, file in said["modules"].items():
        if name.startswith("_tensorpoint"):
            assert file is not None, name
            assert file.startswith((folder + "/", beside + "/")), name
    assert said["modules"]["_tensorpoint.agent.stop"] == f"{folder}/agent/stop.py"


@pytest.mark.parametrize("by", ["location", "texts"])
def test_agent_conditions_and_wire_need_the_standard_library_only(by: str) -> None:
    said = booted(
        PACKAGE if by == "location" else "/not/there",
        None if by == "location" else sources(),
        also=ROOMS,
    )
    check(said)
    ours = {"_tensorpoint", "_tensorpoint_adapters"}
    tops = {name.partition(".")[0] for name in said["modules"]} - ours
    assert tops <= set(sys.stdlib_module_names)
    assert set(ROOMS) <= set(said["modules"])


def test_an_unreadable_folder_is_answered_so_that_the_texts_are_sent() -> None:
    said = booted("/not/there")
    assert said["greetings"] == [{"unreadable": True}] * 2
    assert not any(name.startswith("_tensorpoint.") for name in said["modules"])


def test_a_failure_is_an_answer_not_an_exception() -> None:
    broken = {**sources(), "agent/requests.py": "raise RuntimeError('ours')"}
    said = booted("/not/there", broken)
    assert said["greetings"][0] == {"error": "RuntimeError: ours"}
    broken = {**sources(), "agent/requests.py": "not python at all"}
    assert "SyntaxError" in booted("/not/there", broken)["greetings"][0]["error"]


def test_a_program_that_has_tensorpoint_itself_keeps_its_own_copy() -> None:
    ask = """
import json, sys
import tensorpoint.agent.rules as own
namespace = {"__name__": "bootstrap"}
exec(compile(sys.argv[1], "<bootstrap>", "exec"), namespace)
greeting = json.loads(namespace["boot"](sys.argv[2], sys.argv[3]))
assert "error" not in greeting, greeting
import _tensorpoint.agent.rules as private
assert own is not private and own.__file__ == private.__file__
"""
    done = subprocess.run(
        [sys.executable, "-B", "-c", ask, BOOTSTRAP, str(PACKAGE), PLAN],
        check=False,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_it_loads_on_every_other_python(version: str) -> None:
    python = other_pythons().get(version)
    if python is None:
        pytest.skip(f"no CPython {version} on this machine beside the one that runs the tests")
    check(booted(python=python, also=ROOMS))
    check(booted("/not/there", sources(), python=python, also=ROOMS))
