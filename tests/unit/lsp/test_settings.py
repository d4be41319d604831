"""Settings are read from whatever a client sends; what is wrong is said, and costs only itself."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tensorpoint.lsp.configuration import environment_of
from tensorpoint.lsp.settings import Settings, read
from tensorpoint.shapes import environment_of as environment_of_a_trace

ROOT = Path(__file__).parents[3]


def test_names_are_those_of_the_section() -> None:
    settings, errors = read(
        {
            "python": "py",
            "shapes": {"codeLens": False, "hints": {"returns": True}, "inputs": ["x: f32[B]"]},
            "languageServer": {"enable": True},
        }
    )
    assert errors == []
    assert (settings.python, settings.shapes.code_lens) == ("py", False)
    assert (settings.shapes.hints.returns, settings.shapes.hints.targets) == (True, True)
    assert settings.shapes.inputs == ("x: f32[B]",)


def test_what_is_wrong_is_said_and_left_out() -> None:
    settings, errors = read({"shapes": {"diagnostics": "loud", "delay": "1", "codeLens": False}})
    assert [error.split(":")[0] for error in errors] == [
        '"tensorpoint.shapes.diagnostics" is "loud"',
        '"tensorpoint.shapes.delay" is "1"',
    ]
    assert settings.shapes == replace(Settings().shapes, code_lens=False)
    assert read(7)[1] == ['"tensorpoint" must be an object, not 7']
    assert read({"shapes": [1]})[1] == ['"tensorpoint.shapes" must be an object, not [1]']


def test_what_is_not_said_stays() -> None:
    base, _ = read({"shapes": {"delay": 5}})
    assert read(None, base) == (base, [])
    assert read({"python": None}, base) == (base, [])
    assert read({"shapes": {"enable": False}}, base)[0].shapes.delay == 5


def test_the_extension_declares_them_with_the_same_defaults() -> None:
    manifest = json.loads((ROOT / "vscode-client/package.json").read_text(encoding="utf-8"))
    declared = {
        name.removeprefix("tensorpoint.shapes."): entry["default"]
        for name, entry in manifest["contributes"]["configuration"]["properties"].items()
        if name.startswith("tensorpoint.shapes.")
    }
    ours = asdict(Settings().shapes)
    hints = {f"hints.{name}": value for name, value in ours.pop("hints").items()}
    ours["codeLens"] = ours.pop("code_lens")
    # The extension has inline values of its own.
    del ours["inline_values"]
    assert declared == {**ours, **hints, "inputs": [], "plugins": []}


def test_the_interpreter_is_found_where_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(python: str = "") -> str:
        return environment_of(Settings(python=python), tmp_path).python[0]

    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    own = tmp_path / ".venv/bin/python"
    own.parent.mkdir(parents=True)
    own.touch()
    assert found() == str(own)
    assert found("env/bin/python") == str(tmp_path / "env/bin/python")
    assert found("python3") == shutil.which("python3")
    assert found("no-such-python") == "no-such-python"
    other = tmp_path / "active"
    (other / "bin").mkdir(parents=True)
    (other / "bin/python").touch()
    monkeypatch.setenv("VIRTUAL_ENV", str(other))
    assert found() == str(other / "bin/python")


def test_traces_find_what_they_need_in_the_resident_process() -> None:
    assert environment_of(Settings(), None).preload == environment_of_a_trace().preload != ()
