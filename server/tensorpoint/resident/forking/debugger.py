"""debugpy, imported in the zygote and put aside: only a program that is debugged finds it."""

from __future__ import annotations

import builtins
import importlib
import os
import sys
from dataclasses import dataclass
from types import ModuleType
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

    def run(self) -> None:
        """What its `__main__.py` does, which finds its arguments in `sys.argv`."""
        sys.modules.update(self.modules)
        for scope, changes in zip((sys, builtins), self.changes):
            scope.__dict__.update(changes)
        files: Any = sys.modules["_pydevd_bundle.pydevd_dont_trace_files"]
        files.DONT_TRACE[_BELOW] = files.PYDEV_FILE
        if not os.environ.get("DEBUGPY_LOG_DIR"):
            # A report on the environment for a log that nobody keeps: 75 ms, twice.
            log: Any = sys.modules["debugpy.common.log"]
            log.describe_environment = _nothing
        cli: Any = sys.modules["debugpy.server.cli"]
        cli.main()


def import_debugger(folder: str) -> Debugger:
    """Import debugpy from `folder` and put everything of it aside."""
    modules, path = set(sys.modules), list(sys.path)
    before = [dict(scope.__dict__) for scope in (sys, builtins)]
    sys.path.insert(0, os.path.dirname(folder))
    try:
        for name in _MODULES:
            importlib.import_module(name)
    finally:
        sys.path[:] = path
    inside = os.path.join(folder, "")
    loaded = {
        name: sys.modules.pop(name)
        for name in set(sys.modules) - modules
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(inside)
    }
    changes = tuple(_take_back(scope, was) for scope, was in zip((sys, builtins), before))
    return Debugger(folder, loaded, (changes[0], changes[1]))


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
    """Stands in for the report."""
