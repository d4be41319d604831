"""Fixtures of the tests of the resident process: a host each, and one for those that only run."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.resident.hosts import Host, running_host

Write = Callable[..., Path]


@pytest.fixture(scope="session")
def shared_host() -> Iterator[Host]:
    """A host with a zygote that has torch, for tests that leave both as they are."""
    with running_host(TP_ONE="one") as host:
        yield host


@pytest.fixture
def host() -> Iterator[Host]:
    """A host of the test's own."""
    with running_host() as host:
        yield host


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a program (dedented) to a file of its own and return the path."""

    def write(code: str, name: str = "program.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code), encoding="utf-8")
        return path

    return write
