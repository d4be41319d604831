"""Keeps what was recorded of a program for when it has ended (`resident.runs`).

Facts come at each stop, before a disconnect, and by themselves when the program ends; so what is
kept of a program that is killed is that of its last stop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import msgspec

from ..resident import runs
from ..wire import Facts
from ..wire.codec import convert
from . import injection
from .peer import Message, Peer

_log = logging.getLogger(__name__)
#: The editor's own questions at a stop go first.
_AFTER_STOP_S = 0.2
_LAST_S = 1.0


class LastRun:
    """The run of one session."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        self._complain = complain
        self._program = self._folder = ""
        #: When the program was started, in seconds since 1970.
        self.began = time.time()
        #: How often it was asked for: of stops in quick succession only the last is answered.
        self._asked = 0
        #: Whether those of the program's end are kept.
        self._over = False
        #: Held while a file is written: at a stop on another thread than at the end.
        self._writing = threading.Lock()

    def begin(self, arguments: Message) -> None:
        """A program is started by these arguments, or attached to."""
        self.began = time.time()
        self._folder = os.path.abspath(arguments.get("cwd") or "")
        if arguments.get("program"):
            self._program = os.path.join(self._folder, arguments["program"])
        elif arguments.get("module"):
            self._program = f"-m {arguments['module']}"
        elif arguments.get("code"):
            self._program = "-c"

    def on_process(self, body: Message) -> None:
        """Hear from debugpy who it is: for an attach nobody else says so."""
        name = str(body.get("name") or "")
        self._program = self._program or (name if os.path.isabs(name) else "")

    def on_agent(self, age: float | None) -> None:
        """Hear from the program for how long it has been running: it may be on another machine."""
        if age is not None:
            self.began = min(self.began, time.time() - age)

    async def ask(self, debugpy: Peer, *, at_once: bool = False) -> None:
        """Have the program tell what it has recorded, and keep that."""
        self._asked += 1
        mine = self._asked
        if not at_once:
            await asyncio.sleep(_AFTER_STOP_S)
            if mine != self._asked:
                return
        try:
            seconds = _LAST_S if at_once else None
            facts = await asyncio.wait_for(injection.facts(debugpy, {}), seconds)
        except (injection.AgentError, asyncio.TimeoutError) as error:
            _log.info("no facts of this run: %s", error)
            return
        with self._complaining():
            await asyncio.to_thread(self._keep, facts, ended=False)

    def keep(self, message: dict[str, Any]) -> None:
        """Keep the facts of the program's end."""
        with self._complaining():
            self._keep(message, ended=True)

    @contextmanager
    def _complaining(self) -> Generator[None]:
        try:
            yield
        except (msgspec.ValidationError, OSError) as error:
            self._complain(f"the facts of this run can't be kept: {error}")

    def _keep(self, message: dict[str, Any], *, ended: bool) -> None:
        """Keep facts, unless there are none or those of the program's end are kept already.

        On any thread. Raises ValidationError, OSError.
        """
        facts = convert(message, Facts)
        if not facts.layers:
            return
        files = runs.calling_files(facts)
        with self._writing:
            if self._over:
                return
            self._over = ended
            run = runs.Run(
                *(self._program, self._folder, facts.pid, self.began, facts.time, ended, files),
                *(facts.rank, facts.ranks),
            )
            runs.keep(run, facts)
