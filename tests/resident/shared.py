"""Programs under test from a resident process: debuggees are forked, not started.

    pytestmark = pytest.mark.usefixtures("resident_process")

Each worker then has one host, and debuggees are forked from its zygotes in place of importing torch
each: 20 tests of test_programs.py took 120 s instead of 355. For modules that are about what is
said at a stop; tests of starting itself start programs, or have hosts of their own, in
tests/resident. With `pytest --cold` nothing is forked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from tests.resident.hosts import SERVER, Host, found_by_all, running_host


@pytest.fixture(scope="session")
def resident_host(request: pytest.FixtureRequest) -> Iterator[Host | None]:
    """The host of this worker; None with --cold or where nothing can be forked.

    It imports at once what several programs need: one that learns it replaced its zygotes six
    times on the way through tests/protocol.
    """
    if request.config.getoption("--cold") or not hasattr(os, "fork"):
        yield None
        return
    with running_host(True) as host:
        host.prepare_adapters()
        yield host


@pytest.fixture(scope="module")
def resident_process(resident_host: Host | None) -> Iterator[None]:
    """Adapters that this module's tests start find the host, and wait for its zygotes."""
    if resident_host is None:
        yield
        return
    with found_by_all(resident_host):
        yield


@pytest.fixture
def forked(resident_host: Host | None) -> Iterator[None]:
    """The same for one test."""
    if resident_host is None:
        yield
        return
    with found_by_all(resident_host):
        yield


def python_command(host: Host | None) -> list[str]:
    """What runs a program in `adapter_environment()`, with torch imported already."""
    if host is None:
        return [sys.executable]
    return host.command(answer=host.acquire(PYTHONPATH=str(SERVER)))


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not this test: a fork has torch among its modules, whether the program imports it or not."""
    monkeypatch.setenv("TENSORPOINT_RESIDENT", "0")


@pytest.fixture(scope="module", params=["fresh", "forked"])
def both_ways(request: pytest.FixtureRequest) -> None:
    """Each test of the module twice: its program is a fresh interpreter, then a fork."""
    if request.param == "forked":
        if request.getfixturevalue("resident_host") is None:
            pytest.skip("nothing is forked here, or by --cold")
        request.getfixturevalue("resident_process")
