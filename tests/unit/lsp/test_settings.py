"""Settings are read from whatever a client sends; what is wrong is said, and costs only itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tensorpoint.lsp.configuration import environment_of
from tensorpoint.lsp.settings import Settings, read


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
    assert found("python3.12") == "python3.12"
    other = tmp_path / "active"
    (other / "bin").mkdir(parents=True)
    (other / "bin/python").touch()
    monkeypatch.setenv("VIRTUAL_ENV", str(other))
    assert found() == str(other / "bin/python")
