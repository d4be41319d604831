"""The demo's program and its fix; the demo itself runs in tests/protocol."""

from __future__ import annotations

import pytest

from tensorpoint.demo import FIX, PROGRAM, demo


def test_the_fix_is_for_one_line_of_the_program() -> None:
    code = PROGRAM.read_text(encoding="utf-8")
    broken, fixed = FIX
    assert code.count(broken) == 1
    compile(code.replace(broken, fixed), PROGRAM.name, "exec")


def test_a_missing_interpreter_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo("no-such-python") == 2
    assert "no interpreter 'no-such-python'" in capsys.readouterr().err


def test_missing_packages_are_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorpoint.demo._NEEDED", ("sys", "no_such_torch"))
    assert demo() == 1
    error = capsys.readouterr().err
    assert "needs no_such_torch" in error
    assert "-m pip install 'tensorpoint[demo]'" in error
