"""Loads the agent into the debugged process. The adapter evaluates this file's text there.

The package is loaded from its folder under a private name, so nothing of ours has to be installed
in the debuggee's environment, its `sys.path` is untouched, and a program that itself imports
`tensorpoint` gets its own copy.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from types import ModuleType
from typing import Any

PRIVATE_NAME = "_tensorpoint"


def boot(folder: str, plan: str, sources: dict[str, str] | None = None) -> str:
    """Load the package at `folder` and start the agent with `plan`; returns its greeting as JSON.

    Where `folder` isn't readable (the program runs in a container, on another machine) the answer
    is `{"unreadable": true}`; then call again with `sources`, a map from path below `folder` to
    text. Calling it again in a process that has an agent (a forked child, a second attach) is
    harmless. A failure is returned as `{"error": ...}`, never raised: the debuggee must not die
    of us.
    """
    try:
        if PRIVATE_NAME not in sys.modules:
            if sources is not None:
                sys.meta_path.append(_SourceFinder(folder, sources))
            elif not os.access(os.path.join(folder, "agent", "session.py"), os.R_OK):
                return json.dumps({"unreadable": True})
            else:
                _load_package(folder)
        session = importlib.import_module(f"{PRIVATE_NAME}.agent.session")
        greeting: str = session.start(plan)
        return greeting
    except Exception as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


def _load_package(folder: str) -> None:
    spec = importlib.util.spec_from_file_location(
        PRIVATE_NAME, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load the agent from {folder}")
    package = importlib.util.module_from_spec(spec)
    sys.modules[PRIVATE_NAME] = package
    try:
        spec.loader.exec_module(package)
    except BaseException:
        del sys.modules[PRIVATE_NAME]
        raise


class _SourceFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds the agent's modules in texts that were sent along."""

    def __init__(self, folder: str, sources: dict[str, str]) -> None:
        self._folder = folder
        self._sources = sources

    def _path(self, fullname: str) -> str | None:
        package, _, rest = fullname.partition(".")
        if package != PRIVATE_NAME:
            return None
        stem = rest.replace(".", "/")
        candidates = (f"{stem}.py", f"{stem}/__init__.py".lstrip("/"))
        return next((path for path in candidates if path in self._sources), None)

    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        found = self._path(fullname)
        if found is None:
            return None
        spec = importlib.machinery.ModuleSpec(
            fullname,
            self,
            origin=os.path.join(self._folder, found),
            is_package=found.endswith("__init__.py"),
        )
        spec.has_location = True  # sets __file__, by which the agent knows its own frames
        return spec

    def get_source(self, fullname: str) -> str:
        return self._sources[self._path(fullname) or ""]

    def is_package(self, fullname: str) -> bool:
        return (self._path(fullname) or "").endswith("__init__.py")
