"""The code cells of a notebook as one text, which is what is traced of it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, cast

#: IPython's own lines, which Python does not read: `%time`, `!pip install`, `?help`; but not an
#: expression that goes on with `% 2` or `!= 2`.
_MAGIC = re.compile(r"\s*(?:%%?\w|!(?!=)|\?)")


class BadNotebook(ValueError):
    """A file that is no notebook; the text says why."""


def python_of(lines: Sequence[str]) -> str:
    """What Python reads of the lines of cells, line for line and column for column."""
    return "\n".join("" if _MAGIC.match(line) else line for line in lines)


class Notebook:
    """A notebook file: `lines` are those of its code cells, one after the other."""

    def __init__(self, content: str) -> None:
        self.lines: list[str] = []
        self._cells: list[int] = []
        for source in _sources(content):
            lines = source.split("\n")
            self._cells.append(len(lines))
            self.lines += lines

    @property
    def text(self) -> str:
        """What is traced."""
        return python_of(self.lines)

    def place(self, line: int) -> tuple[int, int]:
        """The code cell that a line is in, and which of its lines: all count from 1."""
        for number, count in enumerate(self._cells, 1):
            if line <= count:
                return number, line
            line -= count
        raise ValueError(f"there is no line {line} in a cell")


def _sources(content: str) -> list[str]:
    try:
        notebook = json.loads(content)
    except ValueError as error:
        raise BadNotebook(f"it is no notebook: {error}") from None
    cells = cast("dict[str, Any]", notebook).get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise BadNotebook("it is no notebook of format 4: it has no cells")
    found: list[str] = []
    for cell in cast("list[dict[str, Any]]", cells):
        if cell.get("cell_type") == "code":
            source = cell.get("source", "")
            found.append(source if isinstance(source, str) else "".join(source))
    return found
