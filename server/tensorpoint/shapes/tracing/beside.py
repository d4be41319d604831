"""Calls of a file's classes in other files: a model here, its training there.

First those of its folder, then the others of the project, which is the innermost folder around with
a pyproject.toml or a repository. There many files may have the same name, so that it is looked
which of them was imported. Bounded in files, bytes and time: it is asked for at each trace.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from . import accelerators
from .autocasts import WORDS, castings_of
from .casting import Castings
from .examples import calls_of
from .rewriting import Source
from .source import MODULE, FileModule
from .values import Values

_MOST_FILES = 200
#: Of other folders of the project: files, and seconds of the processor.
_MOST_ELSEWHERE = 2000
_SECONDS = 0.2
_PROJECTS = ("pyproject.toml", ".git", "setup.py")
_MOST_READ = 4
_IMPORT = re.compile(
    r"^\s*(?:from\s+\.*([\w.]*)\s+import\s+\(?([^#\n]*)|import\s+([\w., ]+))", re.M
)
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
        for file, values, kind in self._using(name):
            yield from calls_of(file, values, kind)

    def castings(self, name: str, *, alone: bool) -> Iterator[Castings]:
        """The autocasts under which other files call a class of the file."""
        for file, values, kind in self._using(name, WORDS):
            yield castings_of(file, values, kind, alone=alone)

    def _using(
        self, name: str, words: Sequence[str] = ("",)
    ) -> Iterator[tuple[FileModule, Values, Any]]:
        """Files that call something of the file, with what that is there; those with a word."""
        for path in self._mentioning(name, words):
            found = self._open(path)
            kind = found[0].namespace.get(name) if found else None
            if found is not None and kind is not None and self._is_ours(kind, path):
                yield (*found, kind)

    def _is_ours(self, kind: Any, path: Path) -> bool:
        """Whether what a file in another folder has imported is from this one."""
        if path.parent == self._path.parent:
            return True
        module = sys.modules.get(getattr(kind, "__module__", ""))
        file = getattr(module, "__file__", None)
        return file is not None and os.path.realpath(file) == os.path.realpath(self._path)

    def _mentioning(self, name: str, words: Sequence[str]) -> Iterator[Path]:
        """Files that import the file, call something of that name and have one of the words."""
        uses = re.compile(rf"\b{re.escape(name)}\(")
        for path in self._others():
            try:
                if path.stat().st_size > _MOST_BYTES:
                    continue
                text = path.read_text("utf-8")
            except (OSError, UnicodeError):
                continue
            if self._path.stem not in text or not uses.search(text):
                continue
            if not any(word in text for word in words):
                continue
            if self._imported_in(text):
                yield path

    def _imported_in(self, text: str) -> bool:
        """Whether an import in a file may be one of this file, by its dotted name."""
        own = self._path.with_suffix("").parts
        for module, names, plain in _IMPORT.findall(text):
            found = [module, *(f"{module}.{name}" for name in _first_words(names))]
            for dotted in [*found, *_first_words(plain)]:
                parts = tuple(part for part in dotted.split(".") if part)
                if parts and own[-len(parts) :] == parts:
                    return True
        return False

    def _others(self) -> Iterator[Path]:
        """Python files beside this one, then those of the project's other folders."""
        folder = self._path.parent
        # None where the file is only in the editor.
        beside = os.listdir(folder) if folder.is_dir() else []
        for path in _python_files(folder, beside)[:_MOST_FILES]:
            if path.name != self._path.name:
                yield path
        if self._project is None:
            return
        end, left = time.process_time() + _SECONDS, _MOST_ELSEWHERE
        for where, folders, names in os.walk(self._project):
            folders[:] = sorted(name for name in folders if _is_source(Path(where, name)))
            if Path(where) == folder:
                continue
            for path in _python_files(Path(where), names):
                left -= 1
                if left < 0 or time.process_time() > end:
                    return
                yield path

    @cached_property
    def _project(self) -> Path | None:
        """The innermost folder around that is a project's; not the whole of a home."""
        for folder in self._path.parents:
            if any((folder / name).exists() for name in _PROJECTS):
                return folder if folder != Path.home() else None
        return None

    def _open(self, path: Path) -> tuple[FileModule, Values] | None:
        if path in self._files or len(self._files) >= _MOST_READ:
            return self._files.get(path)
        self._files[path] = None
        try:
            file = FileModule(Source(path.read_text("utf-8"), str(path)), f"{MODULE}{path.stem}")
        except (OSError, ValueError, SyntaxError):
            return None
        if self._project is not None and str(self._project) not in sys.path:
            sys.path.append(str(self._project))  # from which its scripts are started
        file.load()
        accelerators.put_in_place(file.namespace)
        self.read.append(str(path))
        self._files[path] = file, Values(file)
        return self._files[path]


def _python_files(folder: Path, names: Sequence[str]) -> list[Path]:
    return [folder / name for name in sorted(names) if name.endswith(".py")]


def _is_source(folder: Path) -> bool:
    """Not installed packages, nor what tools keep."""
    hidden = folder.name.startswith((".", "__")) or folder.name in ("node_modules", "build")
    return not hidden and not (folder / "pyvenv.cfg").exists()


def _first_words(names: str) -> list[str]:
    """`a as b, c` has a and c."""
    return [each.split()[0] for each in names.split(",") if each.split()]
