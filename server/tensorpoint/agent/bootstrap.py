"""Loads the agent into the debugged process. The adapter evaluates this file's text there.

Two packages, the agent's and the one with the adapters for frameworks, are loaded from their
folders under private names, so nothing of ours has to be installed in the debuggee's environment,
its `sys.path` is untouched, and a program that itself imports `tensorpoint` gets its own copy.
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
#: The package with the adapters, as it is called where it is installed.
_ADAPTERS = "tensorpoint_adapters"
PRIVATE_ADAPTERS = f"_{_ADAPTERS}"


def boot(folder: str, plan: str, sources: dict[str, str] | None = None) -> str:
    """Load the package at `folder` and start the agent with `plan`; returns its greeting as JSON.

    Where `folder` isn't readable (the program runs in a container, on another machine) the answer
    is `{"unreadable": true}`; then call again with `sources`, a map from path below `folder`, or
    from `tensorpoint_adapters/...`, to text. Calling it again in a process that has an agent (a
    forked child, a second attach) is harmless. A failure is returned as `{"error": ...}`, never
    raised: the debuggee must not die of us.
    """
    try:
        if PRIVATE_NAME not in sys.modules:
            if sources is not None:
                sys.meta_path.append(_SourceFinder(folder, sources))
            elif not os.access(os.path.join(folder, "agent", "requests.py"), os.R_OK):
                return json.dumps({"unreadable": True})
            else:
                _load_packages(folder)
        requests = importlib.import_module(f"{PRIVATE_NAME}.agent.requests")
        greeting: str = requests.start(plan)
        return greeting
    except Exception as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


def load(folder: str) -> None:
    """Load the package at `folder`, unless this process has an agent already."""
    if PRIVATE_NAME not in sys.modules:
        _load_packages(folder)


def adapters_folder(folder: str) -> str | None:
    """Where the adapters are: next to the package when installed, else in the repository."""
    above = os.path.dirname(folder)
    places = (above, os.path.join(os.path.dirname(above), "adapters"))
    candidates = (os.path.join(place, _ADAPTERS) for place in places)
    return next((found for found in candidates if os.path.isfile(_entry(found))), None)


def _entry(folder: str) -> str:
    return os.path.join(folder, "__init__.py")


def _load_packages(folder: str) -> None:
    adapters = adapters_folder(folder)
    if adapters is not None:
        sys.meta_path.append(_FolderFinder(adapters))
    _load_package(folder)


def _load_package(folder: str) -> None:
    spec = importlib.util.spec_from_file_location(
        PRIVATE_NAME, _entry(folder), submodule_search_locations=[folder]
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


class _FolderFinder(importlib.abc.MetaPathFinder):
    """Finds the adapters' package, which is imported only when something listens to adapters."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != PRIVATE_ADAPTERS:
            return None
        return importlib.util.spec_from_file_location(
            fullname, _entry(self._folder), submodule_search_locations=[self._folder]
        )


class _SourceFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds the modules of both packages in texts that were sent along."""

    def __init__(self, folder: str, sources: dict[str, str]) -> None:
        self._folder = folder
        self._sources = sources

    def _path(self, fullname: str) -> str | None:
        package, _, rest = fullname.partition(".")
        if package not in (PRIVATE_NAME, PRIVATE_ADAPTERS):
            return None
        above = f"{_ADAPTERS}/" if package == PRIVATE_ADAPTERS else ""
        stem = above + rest.replace(".", "/")
        candidates = (f"{stem}.py", f"{stem.rstrip('/')}/__init__.py".lstrip("/"))
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
            origin=os.path.join(self._home(found), found),
            is_package=found.endswith("__init__.py"),
        )
        spec.has_location = True  # sets __file__, by which the agent knows its own frames
        return spec

    def _home(self, path: str) -> str:
        """The folder that `path` is below: that of the adapters is next to ours."""
        return os.path.dirname(self._folder) if path.startswith(_ADAPTERS) else self._folder

    def get_source(self, fullname: str) -> str:
        return self._sources[self._path(fullname) or ""]

    def is_package(self, fullname: str) -> bool:
        return (self._path(fullname) or "").endswith("__init__.py")
