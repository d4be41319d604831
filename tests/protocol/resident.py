"""Programs under test from a resident process, for those who run these tests often.

    pytest tests/protocol/test_programs.py --resident

Each worker then has one host, and debuggees are forked from its zygotes in place of importing
torch each. Tests of starting itself have hosts of their own (tests/resident).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.resident.hosts import running_host


@pytest.fixture(scope="session", autouse=True)
def resident_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """With --resident: adapters that tests start find a host, and wait for its zygotes."""
    if not request.config.getoption("--resident"):
        yield
        return
    with running_host() as host:
        host.prepare_adapters()
        was = dict(os.environ)
        for name in ("TENSORPOINT_RUNTIME_DIR", "XDG_CACHE_HOME", "TENSORPOINT_RESIDENT"):
            os.environ[name] = host.environment[name]
        yield
        os.environ.clear()
        os.environ.update(was)
