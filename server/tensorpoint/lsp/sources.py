"""What is traced as one, from what the editor has open: a file, or the code cells of a notebook."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from lsprotocol import types
from pygls.uris import to_fs_path
from pygls.workspace import Workspace

from ..shapes.notebooks import python_of

#: As the protocol and Python count lines; `str.splitlines` knows more ends than both.
_END_OF_LINE = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class Part:
    """One document of the client: its lines are those of the source from `first` on (from 0)."""

    uri: str
    version: int | None
    first: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """The text that is traced."""

    #: The URI of the document, or that of the notebook.
    key: str
    path: str
    parts: tuple[Part, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """All lines, without their ends."""
        return tuple(line for part in self.parts for line in part.lines)

    @property
    def is_notebook(self) -> bool:
        """Whether the parts are cells."""
        return len(self.parts) != 1 or self.parts[0].uri != self.key

    def cell_of(self, line: int) -> tuple[int, int]:
        """The code cell that a line is in, and which of its lines: all count from 1."""
        for number, part in enumerate(self.parts, 1):
            if part.first < line <= part.first + len(part.lines):
                return number, line - part.first
        raise ValueError(f"line {line} is in none of the cells")

    @property
    def text(self) -> str:
        """What Python reads, line for line and column for column."""
        if not self.is_notebook:
            return "\n".join(self.lines)
        return python_of(self.lines)

    def part(self, uri: str) -> Part | None:
        """The part that is this document."""
        # Clients quote differently, and some not always alike: `%3A`, `:`.
        plain = unquote(uri)
        return next((part for part in self.parts if unquote(part.uri) == plain), None)


def lines_of(text: str) -> tuple[str, ...]:
    """The lines of a text, without their ends."""
    return tuple(_END_OF_LINE.split(text))


def parsed(text: str) -> ast.Module | None:
    """The tree of a text; None if it is no Python: half-written, mostly."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def source_of(workspace: Workspace, uri: str) -> Source | None:
    """The source that a document, a cell or a notebook belongs to; None if it is not open."""
    notebook = workspace.get_notebook_document(cell_uri=uri) or workspace.get_notebook_document(
        notebook_uri=uri
    )
    if notebook is not None:
        return _source_of_notebook(workspace, notebook)
    # `get_text_document` would read any other from the disk.
    if not is_open(workspace, uri):
        return None
    document = workspace.get_text_document(uri)
    key = document.uri  # as it was opened
    part = Part(key, document.version, 0, lines_of(document.source))
    return Source(key, _path(workspace, key), (part,))


def is_open(workspace: Workspace, uri: str) -> bool:
    """Whether the client has opened a document. pygls has them by their unquoted URIs."""
    return unquote(uri) in workspace.text_documents


def _source_of_notebook(workspace: Workspace, notebook: types.NotebookDocument) -> Source:
    parts: list[Part] = []
    first = 0
    for cell in notebook.cells:
        if cell.kind is not types.NotebookCellKind.Code:
            continue
        document = workspace.get_text_document(cell.document)
        lines = lines_of(document.source)
        parts.append(Part(cell.document, document.version, first, lines))
        first += len(lines)
    return Source(notebook.uri, _path(workspace, notebook.uri), tuple(parts))


def _path(workspace: Workspace, uri: str) -> str:
    """Where the text is on the disk, or would be: what it imports is looked for beside it."""
    if uri.startswith("file:"):
        return to_fs_path(uri) or uri
    name = re.sub(r"\W+", "-", uri.rpartition("/")[2] or uri)
    return str(Path(workspace.root_path or ".") / f"{name}.py")
