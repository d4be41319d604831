"""The facts of the last runs, for hovers and the language server when the program has ended.

A file each in the user's cache: a line about the run, and a line of its facts. They are not in the
host's memory, so that they outlive it and are there where no host can be; the newest are kept.
Which run a file was in is read from the first lines alone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from ..wire import Facts
from ..wire.facts import Layer, Parameter, Root
from .places import cache_folder

_MOST_RUNS = 64
_MOST_BYTES = 64 << 20
#: Parsed facts in memory: some hundred kilobytes each.
_MOST_PARSED = 4


@dataclass(frozen=True)
class Run:
    """One process of a session in which facts were recorded.

    `program` is its file, absolute, or what was run else (`-m NAME`). `files` are those whose lines
    call a layer. Times are in seconds since 1970: `read` is when the facts were read, which is the
    end of the program if `ended`.
    """

    program: str
    folder: str
    pid: int
    began: float
    read: float
    ended: bool
    files: tuple[str, ...]
    #: Which of how many processes it was in a distributed run.
    rank: int | None = None
    ranks: int | None = None

    def knows_lines_of(self, file: str) -> bool:
        """Whether `file` is as it was when the run began: else its lines may have moved."""
        try:
            return os.stat(file).st_mtime <= self.began
        except OSError:
            return False


@dataclass(frozen=True)
class Measured:
    """What the last run of a file has measured: the layers that each of its lines called."""

    run: Run
    roots: tuple[Root, ...]
    lines: dict[int, tuple[Layer, ...]]
    #: By the root's number and the path of the layer.
    parameters: dict[tuple[int | None, str], tuple[Parameter, ...]]
    #: Whether the file has changed since that run began: the lines may have moved.
    edited: bool


def measured(file: str) -> Measured | None:
    """What is known of `file` (absolute) from the last run that called a layer in it.

    Of a distributed run it is what rank 0 has measured, or the lowest there is.
    """
    known = [each for each in _newest_first() if file in each[0].files]
    if not known:
        return None
    last = known[0][0]
    run, path = min(
        (each for each in known if each[0] is last or _together(each[0], last)),
        key=lambda each: each[0].rank or 0,
    )
    facts = _facts_in(path)
    if facts is None:  # pruned just now
        return None
    lines: dict[int, tuple[Layer, ...]] = {}
    for layer in facts.layers:
        if layer.file == file and layer.line is not None:
            lines[layer.line] = (*lines.get(layer.line, ()), layer)
    parameters: dict[tuple[int | None, str], tuple[Parameter, ...]] = {}
    for each in facts.parameters:
        key = each.root, each.parameter.rpartition(".")[0]
        parameters[key] = (*parameters.get(key, ()), each)
    return Measured(run, facts.roots, lines, parameters, not run.knows_lines_of(file))


def _together(one: Run, other: Run) -> bool:
    """Whether they are ranks of one distributed run, which ran at the same time."""
    return (
        one.ranks is not None
        and (one.ranks, one.program, one.folder) == (other.ranks, other.program, other.folder)
        and one.rank != other.rank
        and one.began <= other.read
        and other.began <= one.read
    )


def stamp() -> int:
    """Another number when there is another run, or more of one."""
    try:
        return (cache_folder() / "runs").stat().st_mtime_ns
    except OSError:
        return 0


def last_run(folder: str = "") -> tuple[Run, Facts] | None:
    """The newest run of a program in `folder` or below, of any if that is ""."""
    inside = Path(folder)
    for run, path in _newest_first():
        if not folder or inside in Path(run.program).parents or inside == Path(run.folder):
            facts = _facts_in(path)
            if facts is not None:
                return run, facts
    return None


def runs() -> list[Run]:
    """All that are kept, newest first."""
    return [run for run, _ in _newest_first()]


def keep(run: Run, facts: Facts) -> None:
    """Keep the facts of a run, in the place of what was known of it before. Raises OSError."""
    folder = cache_folder() / "runs"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{run.began * 1000:.0f}-{run.pid}.json"
    new = path.with_suffix(f".{os.getpid()}")
    try:
        number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(number, "wb") as stream:
            stream.write(msgspec.json.encode(run) + b"\n" + msgspec.json.encode(facts) + b"\n")
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    _prune(folder)


def calling_files(facts: Facts) -> tuple[str, ...]:
    """The files whose lines call a layer."""
    return tuple(dict.fromkeys(layer.file for layer in facts.layers if layer.file is not None))


def _newest_first() -> list[tuple[Run, Path]]:
    found: list[tuple[Run, Path]] = []
    with contextlib.suppress(OSError):
        for path in (cache_folder() / "runs").glob("*.json"):
            # A file of another version, or one that was pruned just now.
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                found.append((_run_in(path, path.stat().st_mtime_ns), path))
    return sorted(found, key=lambda each: each[0].read, reverse=True)


@lru_cache(_MOST_RUNS * 2)
def _run_in(path: Path, changed: int) -> Run:
    with path.open("rb") as stream:
        return msgspec.json.decode(stream.readline(), type=Run)


def _facts_in(path: Path) -> Facts | None:
    try:
        return _parse(path, path.stat().st_mtime_ns)
    except (OSError, msgspec.MsgspecError):
        return None


@lru_cache(_MOST_PARSED)
def _parse(path: Path, changed: int) -> Facts:
    with path.open("rb") as stream:
        stream.readline()
        return msgspec.json.decode(stream.readline(), type=Facts)


def _prune(folder: Path) -> None:
    """Keep the newest, within the bounds."""
    kept = room = 0
    for path, size in _by_age(folder.iterdir()):
        kept, room = kept + 1, room + size
        if kept > _MOST_RUNS or room > _MOST_BYTES:
            path.unlink(missing_ok=True)


def _by_age(paths: Iterable[Path]) -> list[tuple[Path, int]]:
    """Newest first, with their sizes."""
    found: list[tuple[int, Path, int]] = []
    for path in paths:
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append((status.st_mtime_ns, path, status.st_size))
    return [(path, size) for _, path, size in sorted(found, reverse=True)]
