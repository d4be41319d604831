"""What holds for every test: nothing is fetched, and two workers share the machine's cores."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.resident.shared import both_ways, cold, forked, resident_host, resident_process

__all__ = ["both_ways", "cold", "forked", "resident_host", "resident_process"]

Write = Callable[..., Path]

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A developer's own setting would make every process under test write logs.
os.environ.pop("TENSORPOINT_LOG_DIR", None)

# Programs under test are started afresh; those that are not say so, with a host of their own.
os.environ["TENSORPOINT_RESIDENT"] = "0"


#: Groups that take minutes, the longest in front.
_LONG = ("editor", "resident", "lsp")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What goes to one worker comes first: one that began last would be waited for by the others.

    xdist would begin with the groups of most tests, and give each worker a second one at once.
    """

    def turn(item: pytest.Item) -> int:
        mark = item.get_closest_marker("xdist_group")
        if mark is None:
            return len(_LONG) + 1
        return _LONG.index(mark.args[0]) if mark.args[0] in _LONG else len(_LONG)

    items.sort(key=turn)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cold", action="store_true", help="start each debuggee, fork none from a resident process"
    )


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a program (dedented) to a file of its own and return the path."""

    def write(code: str, name: str = "program.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code), encoding="utf-8")
        return path

    return write
