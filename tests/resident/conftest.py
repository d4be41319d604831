"""Fixtures of the tests of the resident process: a host each, and one for those that only run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.resident.hosts import Host, running_host


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
