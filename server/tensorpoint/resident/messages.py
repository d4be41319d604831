"""What clients and the host say to each other: a line of JSON each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Environment:
    """What a program is to be run with: `python` is an interpreter and its options."""

    python: tuple[str, ...]
    variables: dict[str, str]
    #: Modules to have imported besides the usual ones.
    preload: tuple[str, ...] = ()
    #: For processes of ours: only `preload` is imported, without torch and the debugger.
    tools: bool = False


@dataclass(frozen=True)
class Ask:
    """One request. `environment` goes with "acquire" and "learn", `names` with "learn"."""

    token: str
    command: Literal["acquire", "learn", "status", "restart", "stop", "broker"]
    environment: Environment | None = None
    #: Whether "acquire" waits for a zygote that starts.
    wait: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """Where a zygote is to be asked; else why there is none (yet)."""

    state: Literal["ready", "starting", "unavailable", "done", "refused"]
    socket: str = ""
    token: str = ""
    #: A file that can be started in the place of the interpreter, where only a path can be named.
    executable: str = ""
    #: Why not, or what a user should know: packages have changed.
    note: str = ""
    status: Status | None = None


@dataclass(frozen=True)
class ZygoteStatus:
    """One environment, for `tensorpoint host status`."""

    key: str
    python: str
    flags: tuple[str, ...]
    state: str
    pid: int | None
    #: Proportional share of memory, MiB; None where there is no process.
    memory_mib: float | None
    #: Seconds that the imports took.
    seconds: float | None
    modules: int
    idle_s: float
    running: tuple[int, ...]
    runs: int
    note: str = ""


@dataclass(frozen=True)
class Status:
    """The host, for `tensorpoint host status`."""

    pid: int
    folder: str
    version: str
    zygotes: tuple[ZygoteStatus, ...] = ()
    limits: dict[str, Any] = field(default_factory=dict[str, Any])
