"""What Python reads of a notebook."""

from __future__ import annotations

import pytest

from tensorpoint.lsp.sources import Part, Source


@pytest.mark.parametrize(
    "line", ["%time model(x)", "%%capture", "  %load_ext x", "!pip install y", "?help", "%pip"]
)
def test_lines_of_ipython_are_empty(line: str) -> None:
    assert _read(line) == "\nx = 1"


@pytest.mark.parametrize("line", ["    % 2", "    != y", "x %= 2", "# %time"])
def test_lines_of_expressions_stay(line: str) -> None:
    assert _read(line) == f"{line}\nx = 1"


def _read(line: str) -> str:
    cell = Part("file:///n.ipynb#a", 1, 0, (line, "x = 1"))
    return Source("file:///n.ipynb", "/n.ipynb", (cell,)).text
