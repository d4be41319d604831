"""What is ours in launch and attach arguments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tensorpoint.dap import launch


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        ({}, None),
        ({"listen": {"port": 1}}, None),
        ({"processId": 5}, None),
        ({"host": "h"}, None),
        ({"listen": {"port": 1}, "port": 2}, None),
        ({"connect": {"port": 5678}}, ("127.0.0.1", 5678)),
        ({"connect": {"host": "box", "port": "5678"}}, ("box", 5678)),
        ({"host": "box", "port": 5678}, ("box", 5678)),
        ({"port": 5678}, ("127.0.0.1", 5678)),
    ],
)
def test_the_address_to_dial(arguments: dict[str, Any], address: tuple[str, int] | None) -> None:
    assert launch.address_to_dial(arguments) == address


@pytest.mark.parametrize(
    "connect", [5, "box:1", [], {}, {"host": "x"}, {"port": None}, {"port": "x"}, {"port": -1}]
)
def test_an_address_that_is_none_is_an_error(connect: object) -> None:
    with pytest.raises(ValueError, match='"connect"'):
        launch.address_to_dial({"connect": connect})


def test_our_rules_are_added_once_and_taken_out_for_children() -> None:
    own = {"path": "/x/**", "include": False}
    arguments: dict[str, Any] = {"rules": [own]}
    launch.hide_agent(arguments)
    hidden = [rule["path"] for rule in arguments["rules"]]
    assert arguments["rules"][-1] == own
    assert any(path.endswith("agent/**") for path in hidden)
    launch.forget_hiding(arguments)
    assert arguments == {"rules": [own]}
    arguments = {}
    launch.hide_agent(arguments)
    launch.forget_hiding(arguments)
    assert arguments == {}


def test_env_wins_over_env_file(tmp_path: Path) -> None:
    (tmp_path / "e").write_text("A=1\nB=1\n", encoding="utf-8")
    arguments: dict[str, Any] = {"envFile": "e", "cwd": str(tmp_path), "env": {"B": "2"}}
    launch.read_environment(arguments)
    assert arguments == {"cwd": str(tmp_path), "env": {"A": "1", "B": "2"}}


def test_an_env_file_that_the_editor_has_read_is_not_read_again(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"envFile": str(tmp_path / "none"), "clientOS": "unix"}
    launch.read_environment(arguments)
    assert arguments == {"clientOS": "unix"}


@pytest.mark.parametrize(
    "python", [None, "", [], "python", "no-such-name", sys.executable, [sys.executable, "-E"]]
)
def test_interpreters_that_may_be_there(python: object) -> None:
    launch.check_interpreter({"python": python})


@pytest.mark.parametrize("key", ["python", "pythonPath"])
@pytest.mark.parametrize("given", ["/no/python", ["/no/python", "-E"], "./no/python"])
def test_interpreters_that_are_not_there(key: str, given: object) -> None:
    with pytest.raises(ValueError, match="no interpreter"):
        launch.check_interpreter({key: given})


def test_a_relative_interpreter_is_one_of_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    launch.check_interpreter({"python": "bin/python", "cwd": str(tmp_path)})
