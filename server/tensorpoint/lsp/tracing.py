"""Keeps one table for each source: traces its text when it has been still for a moment.

First by probes alone, for hints at once, then with the symbolic pass, for what takes longer. A
newer text ends the trace of an older one. The last good table stays until there is another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ..resident.jobs import Outcome
from ..resident.messages import Environment
from ..wire.shapes import KnownCall, ShapeDiagnostic, ShapeRequest, ShapeTable
from .settings import Shapes
from .shift import moved, shift
from .sources import Source, parsed

_log = logging.getLogger(__name__)

Trace: TypeAlias = Callable[[ShapeRequest, Environment], Awaitable[Outcome[ShapeTable]]]
Progress: TypeAlias = Callable[[str], AbstractAsyncContextManager[None]]

#: Traces at a time, of all sources: each takes a core.
_AT_A_TIME = 2
#: Tables of former texts that a source keeps: undo shows them at once.
_KEPT = 4
#: Until then a trace is too short for a progress bar.
_PROGRESS_AFTER_S = 0.8
#: A file without any of these has no tensors: it is not traced.
_WORTH = re.compile(
    r"\b(torch|torchvision|transformers|timm|lightning|jaxtyping|nn\.Module|def forward)\b"
    r"|# *tensorpoint:"
)


@dataclass(frozen=True)
class Known:
    """A table and the text that it is of."""

    lines: tuple[str, ...]
    table: ShapeTable


@dataclass(frozen=True)
class Wanted:
    """What a trace is asked for: as long as it stays the same, so does the answer."""

    path: str
    text: str
    specs: tuple[str, ...]
    #: From the project's settings and from the last debug run.
    known: tuple[KnownCall, ...]
    python: tuple[str, ...]
    plugins: tuple[str, ...] = ()


@dataclass
class _Entry:
    wanted: Wanted | None = None
    environment: Environment | None = None
    task: asyncio.Task[None] | None = None
    known: Known | None = None
    #: What is known, the text it was last shown in, and where it stands there.
    shown: tuple[Known, tuple[str, ...], ShapeTable] | None = None
    #: Why the newest text has no table, in a sentence.
    problem: str = ""
    #: By what was wanted: the table, and when the files that it depends on were changed.
    former: dict[Wanted, tuple[Known, tuple[int, ...]]] = field(
        default_factory=dict[Wanted, tuple[Known, tuple[int, ...]]]
    )


class Traces:
    """The tables of all sources of one client."""

    def __init__(
        self,
        trace: Trace,
        changed: Callable[[str], None],
        progress: Progress,
        say_why_cold: Callable[[str], None],
    ) -> None:
        self._trace = trace
        self._say_why_cold = say_why_cold
        self._changed = changed
        self._progress = progress
        self._entries: dict[str, _Entry] = {}
        self._slots = asyncio.Semaphore(_AT_A_TIME)

    def update(
        self,
        source: Source,
        settings: Shapes,
        known: tuple[KnownCall, ...],
        environment: Environment,
        delay: float,
    ) -> None:
        """Have the source traced as it is now, unless it is or is being."""
        wanted = Wanted(
            *(source.path, source.text, settings.inputs, known),
            *(environment.python, settings.plugins),
        )
        entry = self._entries.setdefault(source.key, _Entry())
        if entry.wanted == wanted:
            return
        _cancel(entry)
        entry.wanted, entry.environment = wanted, environment
        if not _WORTH.search(wanted.text):
            if entry.known is not None or entry.problem:
                entry.known, entry.problem = Known(source.lines, ShapeTable(source.path)), ""
                self._changed(source.key)
            return
        former = entry.former.get(wanted)
        if former is not None and former[1] == _stamps(former[0].table):
            entry.known, entry.problem = former[0], ""
            self._changed(source.key)
            return
        entry.task = asyncio.ensure_future(self._run(source, wanted, environment, delay))

    def stale(self, paths: Iterable[str]) -> list[str]:
        """Forget what depends on one of these files; returns the sources that do."""
        changed = {os.path.realpath(path) for path in paths}
        found = [key for key, entry in self._entries.items() if _needs(entry, changed)]
        for key in found:
            self._entries[key].wanted = None
            self._entries[key].former.clear()
        return found

    def forget(self, key: str) -> None:
        """Drop a source that is closed."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            _cancel(entry)

    def forget_all(self) -> None:
        """Drop all: nothing may be traced any more, or all is to be traced anew."""
        for key in [*self._entries]:
            self.forget(key)

    async def close(self) -> None:
        """End what runs, and wait for its end: no process of ours stays."""
        tasks = [entry.task for entry in self._entries.values() if entry.task is not None]
        self.forget_all()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def settled(self, key: str) -> None:
        """Wait until nothing is being traced for a source."""
        # A newer text has a task of its own.
        while (entry := self._entries.get(key)) and (task := _running(entry)):
            await asyncio.wait({task})

    def table(self, source: Source) -> tuple[ShapeTable, str]:
        """The newest table, in the place of the text as it is now, and what is wrong with it."""
        entry = self._entries.get(source.key)
        if entry is None or entry.known is None:
            return ShapeTable(source.path), "" if entry is None else entry.problem
        lines = source.lines
        if entry.shown is None or entry.shown[0] is not entry.known or entry.shown[1] != lines:
            # For all features that ask about this text: 28 ms in a file of 3,000 hints.
            table = entry.known.table
            if entry.known.lines != lines:
                table = shift(table, moved(entry.known.lines, lines))
            entry.shown = (entry.known, lines, table)
        return entry.shown[2], entry.problem

    async def find_breaks(self, source: Source) -> ShapeTable | str | None:
        """Trace a settled source once more with torch.compile; a sentence where there is no answer.

        None if what is traced has changed meanwhile: the answer would be of what is there no more.
        What is found stays until the source is traced again.
        """
        entry = self._entries.get(source.key)
        wanted = None if entry is None else entry.wanted
        if entry is None or wanted is None or entry.environment is None or entry.problem:
            return "" if entry is None else entry.problem
        async with self._slots, self._shown(os.path.basename(wanted.path)):
            outcome = await self._ask(wanted, entry.environment, symbolic=True, breaks=True)
        if self._entries.get(source.key) is not entry or entry.wanted != wanted:
            return None
        if outcome.value is None:
            return _problem(outcome)
        self._take(entry, source, outcome, more_comes=False)
        self._keep(entry, wanted, source, outcome.value)
        return outcome.value

    async def _run(
        self, source: Source, wanted: Wanted, environment: Environment, delay: float
    ) -> None:
        entry = self._entries[source.key]
        await asyncio.sleep(delay)
        async with self._slots, self._shown(os.path.basename(wanted.path)):
            outcome = probed = await self._ask(wanted, environment, symbolic=False)
            thorough = probed.value is not None and bool(probed.value.calls)
            self._take(entry, source, probed, more_comes=thorough)
            if thorough:
                outcome = await self._ask(wanted, environment, symbolic=True)
                best = probed if outcome.value is None else outcome
                self._take(entry, source, best, more_comes=False)
        if outcome.value is not None:
            self._keep(entry, wanted, source, outcome.value)

    def _keep(self, entry: _Entry, wanted: Wanted, source: Source, table: ShapeTable) -> None:
        """For when the same is wanted again, by undo."""
        entry.former[wanted] = (Known(source.lines, table), _stamps(table))
        while len(entry.former) > _KEPT:
            del entry.former[next(iter(entry.former))]

    async def _ask(
        self, wanted: Wanted, environment: Environment, symbolic: bool, breaks: bool = False
    ) -> Outcome[ShapeTable]:
        """One trace; a fault in it is an outcome, too: it must not end the server."""
        request = ShapeRequest(
            *(wanted.path, wanted.text, None, wanted.specs, symbolic),
            known=wanted.known,
            plugins=wanted.plugins,
            breaks=breaks,
        )
        try:
            outcome = await self._trace(request, environment)
        except Exception as error:
            _log.exception("tracing %s", wanted.path)
            return Outcome(None, f"{type(error).__name__}: {error}")
        _log.info(
            "%s: traced in %.2f s, symbolic=%s, forked=%s %s %s",
            *(wanted.path, outcome.seconds, symbolic, outcome.forked),
            *(outcome.error, outcome.traceback),
        )
        if outcome.note:
            self._say_why_cold(outcome.note)
        return outcome

    def _take(
        self, entry: _Entry, source: Source, outcome: Outcome[ShapeTable], more_comes: bool
    ) -> None:
        """Have what came of a trace be what is known; `more_comes` of the symbolic pass."""
        table, lines = outcome.value, source.lines
        # Another Python may run the program: what it could trace is not looked at by this one.
        if (table is None or not table.calls) and parsed(source.text) is None:
            # The editor says what is wrong; the last good table stays.
            entry.problem = ""
        elif table is not None:
            if more_comes and entry.known is not None:
                # What the symbolic pass had found stays until it has looked again: no flicker.
                before = shift(entry.known.table, moved(entry.known.lines, lines))
                table = replace(table, diagnostics=table.diagnostics or _standing(before, table))
            entry.known, entry.problem = Known(lines, table), ""
        else:
            entry.problem = _problem(outcome)
        self._changed(source.key)

    @contextlib.asynccontextmanager
    async def _shown(self, name: str) -> AsyncGenerator[None]:
        """A progress bar, if it takes long."""

        async def show() -> None:
            await asyncio.sleep(_PROGRESS_AFTER_S)
            async with self._progress(f"Shapes of {name}"):
                await asyncio.Event().wait()

        task = asyncio.ensure_future(show())
        try:
            yield
        finally:
            task.cancel()


def _standing(before: ShapeTable, table: ShapeTable) -> tuple[ShapeDiagnostic, ...]:
    """What an older table says that a newer one has not disproved.

    A call that failed at all sizes was not among those of the older one; now it runs.
    """
    known = {call.qualname for call in before.calls}
    mended = any(call.qualname not in known for call in table.calls)
    return tuple(d for d in before.diagnostics if not mended or d.severity != "error")


def _cancel(entry: _Entry) -> None:
    if entry.task is not None:
        entry.task.cancel()
        entry.task = None


def _running(entry: _Entry) -> asyncio.Task[None] | None:
    return entry.task if entry.task is not None and not entry.task.done() else None


def _needs(entry: _Entry, changed: set[str]) -> bool:
    """Whether one of these files, by their real paths, may have to do with what is known."""
    own = set[str]() if entry.wanted is None else {os.path.realpath(entry.wanted.path)}
    if entry.known is None:
        # The trace that runs may have read them already.
        return _running(entry) is not None and not changed <= own
    table = entry.known.table
    if table.untraced and not table.calls:
        # What could not be imported is not among the dependencies.
        return not changed <= own
    return not changed.isdisjoint(map(os.path.realpath, table.dependencies))


def _stamps(table: ShapeTable) -> tuple[int, ...]:
    """When the files that a table depends on were changed."""
    stamps: list[int] = []
    for path in table.dependencies:
        try:
            stamps.append(os.stat(path).st_mtime_ns)
        except OSError:
            stamps.append(0)
    return tuple(stamps)


def _problem(outcome: Outcome[ShapeTable]) -> str:
    """Why there is no table, in a sentence."""
    if outcome.error.startswith("not within"):
        return (
            f"tracing was ended: {outcome.error}. Code at the top level of the file runs when it "
            'is imported; put what trains below `if __name__ == "__main__":`.'
        )
    return f"the file can't be traced: {outcome.error}."
