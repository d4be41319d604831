"""debugpy, imported in the zygote and put aside: only a program that is debugged finds it."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

#: The one file of ours below the program's first frame that isn't loaded as a frozen module.
_BELOW = "tensorpoint_zygote.py"
_MODULES = ("debugpy", "debugpy.server.cli", "debugpy.server.api", "pydevd")


@dataclass(frozen=True)
class Debugger:
    """A debugger that is loaded and can be put back."""

    #: What `python FOLDER` would run.
    folder: str
    modules: dict[str, ModuleType]
    #: What its import changes in `sys` and `builtins`: the hook of `breakpoint()`.
    changes: tuple[dict[str, Any], dict[str, Any]]
    #: What finds the modules of our agent.
    finders: list[Any]

    def run(self) -> None:
        """What its `__main__.py` does, which finds its arguments in `sys.argv`."""
        sys.modules.update(self.modules)
        sys.meta_path += self.finders
        for scope, changes in zip((sys, builtins), self.changes):
            scope.__dict__.update(changes)
        files: Any = sys.modules["_pydevd_bundle.pydevd_dont_trace_files"]
        files.DONT_TRACE[_BELOW] = files.PYDEV_FILE
        if not os.environ.get("DEBUGPY_LOG_DIR"):
            # A report on the environment for a log that nobody keeps: 75 ms, twice.
            log: Any = sys.modules["debugpy.common.log"]
            log.describe_environment = _nothing
        _send_without_delay()
        _connect_without_pause()
        cli: Any = sys.modules["debugpy.server.cli"]
        _as_pydevd()(cli.main)


def _as_pydevd() -> Callable[[Callable[[], None]], None]:
    """A function that calls another, and looks like the one of pydevd's that runs a program.

    pydevd takes an exception for uncaught where it leaves the outermost frame, or that function
    (`pydevd_trace_dispatch_regular`). Our outermost frame is the zygote's, and left by none.
    """
    scope: dict[str, Any] = {}
    exec(compile("def _exec(act):\n    act()\n", "pydevd.py", "exec"), scope)
    return scope["_exec"]


def _send_without_delay() -> None:
    """pydevd sends header and body in two writes: each answer waits 45 ms for an acknowledgement.

    Our agent sees to it as well, but four requests come before that.
    """
    pydevd: Any = sys.modules["pydevd"]
    start_client = pydevd.start_client

    def start(*address: Any) -> Any:
        connection = start_client(*address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    pydevd.start_client = start


def _connect_without_pause() -> None:
    """pydevd sleeps 0.1 s for its two threads to start, which `Thread.start` has waited for."""
    pydevd: Any = sys.modules["pydevd"]
    initialize_network = pydevd.PyDB.initialize_network

    def initialize(*arguments: Any, **options: Any) -> None:
        time = pydevd.time
        pydevd.time = SimpleNamespace(**{**vars(time), "sleep": _nothing})
        try:
            initialize_network(*arguments, **options)
        finally:
            pydevd.time = time

    pydevd.PyDB.initialize_network = initialize


def import_debugger(folder: str, agent: str) -> Debugger:
    """Import debugpy and our agent from their folders, and put everything of them aside."""
    modules, path = set(sys.modules), list(sys.path)
    before = [dict(scope.__dict__) for scope in (sys, builtins)]
    sys.path.insert(0, os.path.dirname(folder))
    try:
        for name in _MODULES:
            importlib.import_module(name)
        finders = list(sys.meta_path)
        adapters = _import_agent(agent)
    finally:
        sys.path[:] = path
    ours = [finder for finder in sys.meta_path if finder not in finders]
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in ours]
    inside = tuple(os.path.join(place, "") for place in (folder, agent, adapters))
    loaded = {
        name: sys.modules.pop(name)
        for name in set(sys.modules) - modules
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(inside)
    }
    changes = tuple(_take_back(scope, was) for scope, was in zip((sys, builtins), before))
    return Debugger(folder, loaded, (changes[0], changes[1]), ours)


def _import_agent(folder: str) -> str:
    """Load our agent as its bootstrap will, which then finds it; returns the adapters' folder."""
    spec = importlib.util.spec_from_file_location(
        "_tensorpoint_bootstrap", os.path.join(folder, "agent", "bootstrap.py")
    )
    assert spec is not None and spec.loader is not None
    bootstrap = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bootstrap)
    bootstrap.load(folder)
    requests = importlib.import_module(f"{bootstrap.PRIVATE_NAME}.agent.requests")
    adapters: str | None = bootstrap.adapters_folder(folder)
    if adapters is None:
        return folder
    requests.look_ahead()
    return adapters


def _take_back(scope: ModuleType, was: dict[str, Any]) -> dict[str, Any]:
    """Undo what an import has changed in a module; returns it."""
    changed = {
        name: value
        for name, value in scope.__dict__.items()
        if name not in was or was[name] is not value
    }
    for name in changed:
        if name in was:
            scope.__dict__[name] = was[name]
        else:
            del scope.__dict__[name]
    return changed


def _nothing(*_: Any) -> None:
    """Stands in for what only takes time."""
