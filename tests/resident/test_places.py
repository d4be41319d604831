"""The folder of the sockets: found by two modules, one of which may import nothing of ours."""

from __future__ import annotations

import os
import posix
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorpoint.dap.resident import Launch
from tensorpoint.resident import handover, places
from tensorpoint.resident.client import Client, NoHost
from tensorpoint.resident.stubs import STUB
from tests.resident.hosts import SERVER

# `__name__` is not "__main__" there: the file only defines.
STUB_MODULE: dict[str, Any] = runpy.run_path(STUB)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"XDG_RUNTIME_DIR": "{}"},
        {"XDG_RUNTIME_DIR": "{}/gone"},
        {"TENSORPOINT_RUNTIME_DIR": "{}/own", "XDG_RUNTIME_DIR": "{}"},
    ],
    ids=["nothing", "a session's", "one that is gone", "ours"],
)
def test_all_find_the_same_folder(
    variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_RUNTIME_DIR", "TENSORPOINT_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    assert handover.usual_folder() == STUB_MODULE["_runtime_folder"]()


def test_each_installation_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An editor's private environment and a project's may have different versions."""
    monkeypatch.delenv("TENSORPOINT_RUNTIME_DIR", raising=False)
    here = handover.usual_folder()
    monkeypatch.setattr(handover, "_PACKAGE", str(tmp_path / "tensorpoint"))
    there = handover.usual_folder()
    assert there != here and os.path.dirname(there) == os.path.dirname(here)


def test_an_installation_is_the_same_by_whatever_path_it_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TENSORPOINT_RUNTIME_DIR", raising=False)
    code = (
        "from tensorpoint.resident.handover import usual_folder\n"
        "from tensorpoint.resident.stubs import STUB\n"
        "print(usual_folder(), STUB)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{SERVER}/../{SERVER.name}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown.split() == [handover.usual_folder(), STUB]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("owner", [0, 12345])
def test_a_folder_of_somebody_else_is_not_used(
    owner: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In /tmp anybody may have made it before us."""
    monkeypatch.setenv("TENSORPOINT_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("TENSORPOINT_RESIDENT", raising=False)
    monkeypatch.delitem(posix.environ, b"TENSORPOINT_RESIDENT", raising=False)
    monkeypatch.setitem(posix.environ, b"TENSORPOINT_RUNTIME_DIR", os.fsencode(tmp_path))
    used: list[str] = []
    monkeypatch.setattr(os, "execv", lambda path, _: used.append(path))
    monkeypatch.setattr(posix, "posix_spawn", lambda path, *_, **__: used.append(path))
    os.chown(tmp_path, owner, -1)
    handover.hand_over(["dap"])
    STUB_MODULE["_find"]("starts a host", [])
    assert len(used) == (2 if owner == 0 else 0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_session_of_another_user_is_no_place_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `su`, which leaves the variable as it was."""
    monkeypatch.delenv("TENSORPOINT_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setitem(posix.environ, b"XDG_RUNTIME_DIR", os.fsencode(tmp_path))
    for act in (handover.usual_folder, STUB_MODULE["_runtime_folder"]):
        assert act().startswith(f"{tmp_path}/tensorpoint-")
        assert _as_user(54321, act).startswith("/tmp/tensorpoint-54321-")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_user_without_a_home_has_a_cache_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run programs as users that nobody knows: a `~` would be a folder's name there."""
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "TENSORPOINT_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    cache = _as_user(54321, lambda: str(places.cache_folder()))
    assert cache == _as_user(54321, lambda: f"{handover.usual_folder()}/cache")


def _as_user(number: int, act: Callable[[], str]) -> str:
    """What a function returns to another user: one that this machine doesn't know."""
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(number)
            os.setuid(number)
            os.write(sink, act().encode())
        finally:
            os._exit(0)
    os.close(sink)
    with open(source) as stream:
        told = stream.read()
    os.waitpid(pid, 0)
    return told


def test_where_no_socket_can_be_a_launch_says_why_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENSORPOINT_RESIDENT", raising=False)
    monkeypatch.setenv("TENSORPOINT_RUNTIME_DIR", str(tmp_path / ("long" * 30)))
    told = Launch({"program": "x.py"}).prepare()
    assert "an ordinary launch, without the resident process" in told
    assert "is too long for the path of a socket; set TENSORPOINT_RUNTIME_DIR" in told


def test_a_folder_that_takes_no_log_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")  # no folder can be made there
    with pytest.raises(NoHost, match="it can't be started"):
        Client(tmp_path).start()


def test_a_stub_that_shall_use_only_what_runs_starts_no_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    monkeypatch.setattr(posix, "posix_spawn", lambda path, *_, **__: used.append(path))
    monkeypatch.setitem(posix.environ, b"TENSORPOINT_RUNTIME_DIR", os.fsencode(tmp_path))
    for mode, started in ((b"running", 0), (b"", 1)):
        monkeypatch.setitem(posix.environ, b"TENSORPOINT_RESIDENT", mode)
        assert STUB_MODULE["_find"]("starts a host", []) is None
        assert len(used) == started
