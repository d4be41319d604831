"""pytest plugin: debugpy's own tests, run through another debug adapter.

Only two things of debugpy's test sessions are replaced: the command that starts the adapter, and
how a program that listens already is reached. There the tests open a socket to debugpy's adapter;
an editor that starts its adapter as an executable sends the address in the `attach` request.
"""

from __future__ import annotations

import importlib
import os
import shlex
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add our two options."""
    group = parser.getgroup("parity")
    group.addoption("--adapter", metavar="COMMAND", help="the adapter to run in debugpy's place")
    group.addoption(
        "--sample", type=int, default=0, metavar="N", help="keep N evenly spaced tests of each file"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the sample; debugpy's test package can be imported by now."""
    if sample := config.getoption("--sample"):
        files: dict[str, list[pytest.Item]] = {}
        for item in items:
            files.setdefault(item.nodeid.partition("::")[0], []).append(item)
        items[:] = [item for tests in files.values() for item in _spaced(tests, sample)]
    if command := config.getoption("--adapter"):
        _replace_adapter(shlex.split(command))


def _spaced(tests: list[pytest.Item], number: int) -> list[pytest.Item]:
    if len(tests) <= number:
        return tests
    return [tests[position * len(tests) // number] for position in range(number)]


def _replace_adapter(command: list[str]) -> None:
    adapter_folder = os.path.dirname(str(importlib.import_module("debugpy.adapter").__file__))
    timeline: Any = importlib.import_module("tests.timeline")
    some: Any = importlib.import_module("tests.patterns.some")
    session_type: Any = importlib.import_module("tests.debug.session").Session
    stock_command_line = session_type._make_python_cmdline
    stock_connect = session_type.connect_to_adapter

    def command_line(session: Any, *args: Any) -> list[str]:
        line: list[str] = stock_command_line(session, *args)
        return [*command, *line[2:]] if line[1:2] == [adapter_folder] else line

    def connect_to_adapter(session: Any, address: tuple[str, int]) -> None:
        if session.is_subprocess:  # the address is one that the adapter gave
            stock_connect(session, address)
            return
        session.before_connect(address)
        host, port = address
        session.config["connect"] = {"host": host, "port": port}
        # Two adapters announce their sockets: the one that is started here does so first.
        dialed = session.expected_adapter_sockets
        session.expected_adapter_sockets = {"client": dict(dialed["client"])}
        # The test starts no adapter here, so what it puts into the environment of one (a folder
        # in which it counts log files) is not for this.
        session.spawn_adapter.env.clear()
        session.spawn_adapter()
        dialed["client"]["port"] = port
        session.expected_adapter_sockets = dialed
        # Both greet, too.
        telemetry = some.dict.containing({"category": "telemetry"})
        session.ignore_unobserved.append(timeline.Event("output", telemetry))

    session_type._make_python_cmdline = command_line
    session_type.connect_to_adapter = connect_to_adapter
