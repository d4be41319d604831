"""Calls of a file's classes in the other files of its folder: a model here, its training there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .examples import calls_of
from .rewriting import Source
from .source import MODULE, FileModule
from .values import Values

_MOST_FILES = 200
_MOST_READ = 4
_MOST_BYTES = 200_000


class Beside:
    """The files beside one, looked at when they are needed."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        #: Files that were executed: a change of them can change what is found.
        self.read: list[str] = []
        self._files: dict[Path, tuple[FileModule, Values] | None] = {}

    def calls(self, name: str) -> Iterator[dict[str, Any]]:
        """The arguments of calls of a class or function of the file."""
        for path in self._mentioning(name):
            found = self._open(path)
            kind = found[0].namespace.get(name) if found else None
            if found is not None and kind is not None:
                yield from calls_of(*found, kind)

    def _mentioning(self, name: str) -> Iterator[Path]:
        """Files that import the file and call something of that name."""
        imports = re.compile(rf"^\s*(from|import)\s.*\b{re.escape(self._path.stem)}\b", re.M)
        uses = re.compile(rf"\b{re.escape(name)}\(")
        try:
            others = sorted(os.scandir(self._path.parent), key=lambda entry: entry.name)
        except OSError:  # a file that is only in the editor
            return
        for entry in others[:_MOST_FILES]:
            path = Path(entry.path)
            if path.suffix != ".py" or path.name == self._path.name:
                continue
            try:
                if entry.stat().st_size > _MOST_BYTES:
                    continue
                text = path.read_text("utf-8")
            except (OSError, UnicodeError):
                continue
            if imports.search(text) and uses.search(text):
                yield path

    def _open(self, path: Path) -> tuple[FileModule, Values] | None:
        if path in self._files or len(self._files) >= _MOST_READ:
            return self._files.get(path)
        self._files[path] = None
        try:
            file = FileModule(Source(path.read_text("utf-8"), str(path)), f"{MODULE}{path.stem}")
        except (OSError, ValueError, SyntaxError):
            return None
        file.load()
        self.read.append(str(path))
        self._files[path] = file, Values(file)
        return self._files[path]
