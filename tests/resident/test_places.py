"""The folder of the sockets: found by three modules, one of which may import nothing of ours."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tensorpoint.resident import handover, places
from tensorpoint.resident.stubs import STUB

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
    folder = str(places.usual_folder())
    assert handover._folder() == STUB_MODULE["_runtime_folder"]() == folder


def test_each_installation_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An editor's private environment and a project's may have different versions."""
    monkeypatch.delenv("TENSORPOINT_RUNTIME_DIR", raising=False)
    here = places.usual_folder()
    monkeypatch.setattr(places, "__file__", str(tmp_path / "tensorpoint/resident/places.py"))
    assert places.usual_folder() != here and places.usual_folder().parent == here.parent
