"""Runs a function once torch has been imported, without importing it ourselves."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import ModuleType

_POLL_SECONDS = 0.02


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Call `act` after the module `name` is imported: now, if it is; else on the importing thread.

    If another thread is in the middle of importing it (we attached just then), a daemon thread
    waits for the end of that import: taking the import lock instead would import `name` a second
    time if the first attempt fails.
    """
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, _Finder(name, act))
    elif _is_being_imported(module):
        waiter = threading.Thread(
            target=_wait_then, args=(name, act), name="tensorpoint.import", daemon=True
        )
        waiter.pydev_do_not_trace = True  # type: ignore[attr-defined]
        waiter.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
        waiter.start()
    else:
        act()


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


def _wait_then(name: str, act: Callable[[], None]) -> None:
    while True:
        module = sys.modules.get(name)
        if module is None:  # that import failed; the program may try again
            when_imported(name, act)
            return
        if not _is_being_imported(module):
            act()
            return
        time.sleep(_POLL_SECONDS)


class _Finder(importlib.abc.MetaPathFinder):
    """Steps aside for the real finders and wraps the loader they return.

    It stays until an import has succeeded: one may fail, and a program may only ask for the spec
    (`importlib.util.find_spec`) to see whether the module is installed.
    """

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act
        self._asking = threading.local()  # the other finders, on this thread

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking.now = False
        if spec is None or spec.loader is None:  # not installed (yet)
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._act()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
