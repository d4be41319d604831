"""The host's side of one environment: its zygote, started, watched, replaced when it is stale."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import debugpy

from .handover import leave
from .key import Key
from .messages import Answer, Environment, ZygoteStatus
from .places import learned_file, log_folder
from .stubs import STUB, write_executable

_log = logging.getLogger(__name__)
_MAIN = Path(__file__).parent / "forking" / "tensorpoint_zygote.py"
_PACKAGE = str(Path(__file__).parents[1])
_DEBUGGER = str(Path(debugpy.__file__).parent)
#: What every program of PyTorch's world imports; what isn't installed is passed over.
PRELOAD = ("torch", "transformers")
#: Room for the command line of a child, which it shows in place of the zygote's.
_ROOM = " " * 2000
_START_S = 120.0
#: Children see to these; the zygote must be as without them.
_NOT_FOR_ITSELF = frozenset({"PYTHONIOENCODING", "PYTHONUNBUFFERED", "PYTHONINSPECT"})
#: How long a start that failed isn't tried again.
_AGAIN_S = 60.0
#: Imports that would have been spared by a new zygote and make it worth its start, over all that
#: has been told since the last one: a file that is traced at each edit tells the same three again.
_WORTH = 10
#: torch and transformers are 2,600. Beyond it nothing more is learnt: if what is used longest ago
#: went, two programs in turn would have each other's zygotes replaced at every run.
_MOST_LEARNED = 10_000
_numbers = itertools.count(1)


@dataclass(eq=False)
class Zygote:
    """A process that forks, and what it has told."""

    process: asyncio.subprocess.Process
    socket: str
    token: str
    preloaded: frozenset[str]
    executable: str
    sources: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    seconds: float | None = None
    failed: dict[str, str] = field(default_factory=dict[str, str])
    running: set[int] = field(default_factory=set[int])

    def stale(self) -> str:
        """The file by which it differs from what a fresh interpreter would load, or ""."""
        for path, changed, size in self.sources:
            try:
                status = os.stat(path)
            except OSError:
                return path
            if (status.st_mtime_ns, status.st_size) != (changed, size):
                return path
        return ""

    def retire(self) -> None:
        """Let it end with its last child."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def kill(self) -> None:
        """End it and what it runs, at once: its group, since an interpreter may be a script."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class Resident:
    """One environment. Everything here happens on the host's event loop."""

    def __init__(self, key: Key, wanted: Environment, folder: Path, token: str) -> None:
        self.key = key
        self._wanted = wanted
        self._folder = folder
        self._token = token
        self._zygote: Zygote | None = None
        self._starting: asyncio.Task[None] | None = None
        self._failure = ""
        self._failed_at = 0.0
        self._note = ""
        self._runs = 0
        self._retired: set[Zygote] = set()
        self._learned = _read_learned(key.name)
        self._unsafe = False
        self._missed = 0
        #: What clients want imported besides; and what of that no zygote could live with, and why.
        self._asked: dict[str, None] = {}
        self._refused: dict[str, str] = {}
        #: Where `tensorpoint dap` finds the way here.
        self._offered: Path | None = None
        self.used = time.monotonic()

    async def acquire(self, wanted: Environment, wait: bool) -> Answer:
        """Where to ask for a process now; starts a zygote if there is none."""
        self.used = time.monotonic()
        self._asked |= dict.fromkeys(name for name in wanted.preload if name not in self._refused)
        note = ""
        if self._zygote is not None and (changed := self._zygote.stale()):
            note = f"{changed} has changed"
            self._retire("stale: " + note)
        failed_lately = self._failure and time.monotonic() - self._failed_at < _AGAIN_S
        if self._zygote is None and self._starting is None:
            if failed_lately:
                return Answer("unavailable", note=self._failure)
            self._wanted = wanted
            self._start()
        elif self._starting is None and self._lacks(wanted.preload) and not failed_lately:
            self._start()  # this program has what there is
        if wait and self._starting is not None and self._lacks(wanted.preload):
            await asyncio.wait({self._starting})
        if self._zygote is not None:
            zygote = self._zygote
            notes = [note] if note else []
            failed = {**zygote.failed, **self._refused}
            notes += [
                f"{name} can't be imported ahead ({failed[name]})"
                for name in wanted.preload
                if name in failed
            ]
            return Answer("ready", zygote.socket, zygote.token, zygote.executable, "; ".join(notes))
        if self._starting is None:
            return Answer("unavailable", note=self._failure)
        return Answer("starting", note=note)

    def _lacks(self, names: tuple[str, ...]) -> bool:
        """Whether there is no zygote that has these, or has tried to import them."""
        return self._zygote is None or bool({*names} - self._zygote.preloaded - {*self._refused})

    def learn(self, names: tuple[str, ...]) -> None:
        """Have what programs here import imported from now on."""
        if self.key.tools:
            return
        self.used = time.monotonic()
        room = max(_MOST_LEARNED - len(self._learned), 0)
        new = [name for name in dict.fromkeys(names) if name not in self._learned][:room]
        if new:
            self._learned |= dict.fromkeys(new)
            _write_learned(self.key.name, self._learned)
        there = frozenset(self._learned) if self._zygote is None else self._zygote.preloaded
        missing = [name for name in names if name in self._learned and name not in there]
        self._missed += len(missing)
        if self._missed >= _WORTH and missing and self._starting is None and not self._unsafe:
            _log.info("%s: %d modules more are imported", self.key.name, len(missing))
            self._start()

    def restart(self) -> None:
        """Forget failures and start afresh."""
        self._failure, self._unsafe = "", False
        self._refused.clear()
        self._retire("restart")
        if self._starting is None:
            self._start()

    async def stop(self) -> None:
        """End all of it, programs that run included."""
        if self._starting is not None:
            self._starting.cancel()
        everyone = self._everyone()
        self._zygote = None
        for zygote in everyone:
            zygote.kill()
        for zygote in everyone:
            await zygote.process.wait()
            self._bury(zygote)

    @property
    def idle(self) -> bool:
        """Whether nothing runs or starts here."""
        return self._starting is None and not any(each.running for each in self._everyone())

    def _everyone(self) -> list[Zygote]:
        return [*self._retired, *([self._zygote] if self._zygote is not None else [])]

    def memory(self) -> float:
        """The proportional share of its zygote, in MiB."""
        return 0.0 if self._zygote is None else _memory(self._zygote.process.pid) or 0.0

    def status(self) -> ZygoteStatus:
        """For `tensorpoint host status`."""
        zygote = self._zygote
        state = "ready" if zygote else "starting" if self._starting else "failed"
        running = {pid for each in self._everyone() for pid in each.running}
        return ZygoteStatus(
            key=self.key.name,
            python=self.key.python,
            flags=self.key.flags,
            state=state,
            pid=None if zygote is None else zygote.process.pid,
            memory_mib=None if zygote is None else _memory(zygote.process.pid),
            seconds=None if zygote is None else zygote.seconds,
            modules=0 if zygote is None else len(zygote.preloaded),
            idle_s=round(time.monotonic() - self.used, 1),
            running=tuple(sorted(running)),
            runs=self._runs,
            note=self._failure or self._note,
        )

    # Start and end -----------------------------------------------------------------------------

    def _start(self) -> None:
        self._starting = asyncio.ensure_future(self._start_zygote())

    async def _start_zygote(self) -> None:
        try:
            zygote = await self._spawn()
            try:
                await asyncio.wait_for(self._hear_ready(zygote), _START_S)
            except BaseException:
                zygote.kill()
                self._bury(zygote)
                raise
        except (OSError, _Failed, asyncio.TimeoutError) as error:
            said = str(error) or f"no answer within {_START_S:.0f} s"
            self._failure, self._failed_at = f"the resident process did not start: {said}", _now()
            _log.warning("%s: %s", self.key.name, self._failure)
        else:
            self._retire("replaced")
            self._failure = ""
            self._zygote = zygote
            if self.key.tools:
                self._offered = leave(self._folder, self.key.python, zygote.executable)
            self._following = asyncio.ensure_future(self._follow(zygote))
            _log.info("%s: zygote %d is ready", self.key.name, zygote.process.pid)
        finally:
            self._starting = None
            self._missed = 0
        if not self._failure:
            self.learn(tuple(self._learned))  # what was told while it started

    async def _spawn(self) -> Zygote:
        learned = () if self._unsafe else tuple(self._learned)
        usual = () if self.key.tools else PRELOAD
        preload = tuple(dict.fromkeys((*usual, *self._asked, *learned)))
        path = self._folder / f"zygote-{self.key.name}-{next(_numbers) % 10000}"
        path.unlink(missing_ok=True)
        # As in a debugger: only modules that aren't frozen can be stepped into.
        frozen = ["-X", "frozen_modules=off"]
        with open(log_folder(self._folder) / f"zygote-{self.key.name}.log", "ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(self.key.python, *self.key.flags, *frozen, str(_MAIN), _ROOM),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd="/",
                env={k: v for k, v in self._wanted.variables.items() if k not in _NOT_FOR_ITSELF},
                start_new_session=True,
                limit=1 << 24,
            )
        config = {
            "token": self._token,
            "socket": str(path),
            "flags": self.key.flags,
            "preload": preload,
            "debugger": "" if self.key.tools else _DEBUGGER,
            "agent": _PACKAGE,
            "whole_session": self.key.tools,
        }
        assert process.stdin is not None
        process.stdin.write(json.dumps(config).encode() + b"\n")
        executable = Path(f"{path}.sh")
        stub = [self.key.python, "-IS", STUB, str(path), self._token]
        try:
            write_executable(executable, [*stub, *self.key.flags])
        except OSError:  # no room, and nobody would know of the process
            process.kill()
            raise
        return Zygote(process, str(path), self._token, frozenset(preload), str(executable))

    async def _hear_ready(self, zygote: Zygote) -> None:
        message = await _read(zygote)
        if message is None:
            status = await zygote.process.wait()
            log = log_folder(self._folder) / f"zygote-{self.key.name}.log"
            lines = log.read_text(errors="replace").strip().splitlines()
            raise _Failed(f"it ended with status {status}: {lines[-1] if lines else ''}")
        if message["unsafe"] and self._asked:
            self._refused |= {name: str(message["unsafe"]) for name in self._asked}
            self._asked.clear()
            raise _Failed(message["unsafe"])
        if message["unsafe"]:
            if not self._learned or self._unsafe:
                raise _Failed(message["unsafe"])
            self._unsafe = True  # one of the modules that programs here import
            raise _Failed(f"{message['unsafe']}; the next one imports only torch and transformers")
        zygote.sources = [tuple(item) for item in message["sources"]]
        zygote.seconds, zygote.failed = message["seconds"], message["failed"]
        zygote.preloaded |= frozenset(message["modules"])

    async def _follow(self, zygote: Zygote) -> None:
        """Hear what it tells until it ends."""
        while (message := await _read(zygote)) is not None:
            kind: Literal["started", "ended", "imported"] = message["kind"]
            if kind == "started":
                self._runs += 1
                zygote.running.add(message["pid"])
            elif kind == "ended":
                zygote.running.discard(message["pid"])
            elif kind == "imported":
                self.learn(tuple(message["names"]))
        await zygote.process.wait()
        self._bury(zygote)

    def _bury(self, zygote: Zygote) -> None:
        """Leave nothing of a zygote that has ended; its children die with it, theirs here."""
        for pid in zygote.running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        zygote.running.clear()
        for left in (zygote.socket, zygote.executable):
            Path(left).unlink(missing_ok=True)
        self._retired.discard(zygote)
        if zygote is self._zygote:
            self._zygote = None
            self._note = f"zygote {zygote.process.pid} ended: status {zygote.process.returncode}"
            _log.warning("%s: %s", self.key.name, self._note)

    def _retire(self, why: str) -> None:
        if self._offered is not None:
            self._offered.unlink(missing_ok=True)
        if self._zygote is not None:
            _log.info("%s: zygote %d retires: %s", self.key.name, self._zygote.process.pid, why)
            self._zygote.retire()
            self._retired.add(self._zygote)
            self._zygote, self._note = None, why


class _Failed(Exception):
    """The zygote didn't come up; the text says why."""


async def _read(zygote: Zygote) -> dict[str, Any] | None:
    assert zygote.process.stdout is not None
    line = await zygote.process.stdout.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def _memory(pid: int) -> float | None:
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as stream:
            shares = [line.split()[1] for line in stream if line.startswith("Pss:")]
        return round(int(shares[0]) / 1024, 1)
    except (OSError, IndexError, ValueError):
        return None


def _now() -> float:
    return time.monotonic()


def _read_learned(name: str) -> dict[str, None]:
    try:
        found: Any = json.loads(learned_file(name).read_text(encoding="utf-8"))
        return dict.fromkeys(str(item) for item in found)
    except (OSError, ValueError, TypeError):
        return {}


def _write_learned(name: str, names: dict[str, None]) -> None:
    path = learned_file(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps([*names]), encoding="utf-8")
        new.replace(path)
    except OSError as error:
        print(f"tensorpoint host: cannot keep {path}: {error}", file=sys.stderr)
