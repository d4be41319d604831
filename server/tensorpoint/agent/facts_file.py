"""How facts leave the process: as the answer to a request, as a file, and to the client at the end.

The file is written when the client asks for it, as it does at a stop, and when the process ends. A
process that `os._exit` or a signal ends leaves what was written last.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from ..wire import Facts
from .facts import Recorder
from .process import before_hanging_up


class Keeper:
    """Answers for a recorder; `file` is where its facts are left, or ""."""

    def __init__(
        self,
        recorder: Recorder,
        tell: Callable[[Facts], None],
        on_fault: Callable[[str, Exception], None],
    ) -> None:
        self._recorder = recorder
        self._tell = tell
        self._on_fault = on_fault
        self._registered = False
        self._turn = threading.Lock()
        self.file = ""
        recorder.on_begin = self._on_begin

    def leave_in(self, file: str) -> None:
        """Leave facts in this file from now on; what was recorded stays in the one before."""
        if file != self.file:
            self._save_if_possible()
        self.file = file
        if file:
            self._register()

    def answer(self, request: str) -> str:
        """Carry out `tensorpoint/facts`, whose arguments are JSON; returns its body, as JSON."""
        arguments = json.loads(request)
        if arguments.get("save"):
            try:
                self.save()
            except OSError as error:
                return json.dumps({"error": f"cannot write {self.file}: {error.strerror}"})
            return json.dumps({"file": self.file})
        return as_json(self._recorder.read(arguments.get("layers"), bool(arguments.get("history"))))

    def save(self) -> None:
        """Write the file, which is replaced at once. Raises OSError.

        A child process that has recorded nothing leaves none: there are many such.
        """
        if not self.file:
            return
        facts = self._recorder.read(history=True)
        is_child = self.file.endswith(f".{os.getpid()}")
        if is_child and not facts.layers:
            return
        folder, name = os.path.split(self.file)
        part = os.path.join(folder, f".{name}.{os.getpid()}")
        text = as_json(facts)
        with self._turn:
            try:
                with open(part, "w", encoding="utf-8") as stream:
                    stream.write(text + "\n")
                os.replace(part, self.file)
            except BaseException:
                with suppress(OSError):
                    os.remove(part)
                raise

    def after_fork(self) -> None:
        """A child has a file of its own, if any."""
        self.file = ""
        self._turn = threading.Lock()

    def _on_begin(self) -> None:
        """A process that multiprocessing forked ends without running what `atexit` knows."""
        self._register()
        util = sys.modules.get("multiprocessing.util")
        if util is not None and sys.modules["multiprocessing"].parent_process():
            util.Finalize(None, self._save_if_possible, exitpriority=0)
            util.Finalize(None, self._tell_at_end, exitpriority=0)

    def _register(self) -> None:
        if not self._registered:
            self._registered = True
            atexit.register(self._save_if_possible)
            # If it is not called the client has the facts of the last stop.
            before_hanging_up(self._tell_at_end)

    def _tell_at_end(self) -> None:
        if self._recorder.is_recording:
            try:
                self._tell(self._recorder.read())
            except Exception as error:
                self._on_fault("telling the facts of this run", error)

    def _save_if_possible(self) -> None:
        try:
            self.save()
        except Exception as error:
            self._on_fault(f"writing {self.file}", error)


def as_json(facts: Facts) -> str:
    """All of it, on one line."""
    return json.dumps(facts, default=vars)
