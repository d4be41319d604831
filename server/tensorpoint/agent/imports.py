"""Imports of the program's: runs a function after torch's, and lets libraries load untraced."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from types import ModuleType
from typing import Any

_POLL_SECONDS = 0.02


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Call `act` after the module `name` is imported: now, if it is; else on the importing thread.

    If another thread is in the middle of importing it (we attached just then), a daemon thread
    waits for the end of that import: taking the import lock instead would import `name` a second
    time if the first attempt fails.
    """
    if _is_imported(name):
        act()
        return
    finder = _Finder(name, act)
    if name not in sys.modules:
        finder.look_out()
    if _is_under_way(name):
        waiter = threading.Thread(
            target=_wait_for, args=(name, finder), name="tensorpoint.import", daemon=True
        )
        waiter.pydev_do_not_trace = True  # type: ignore[attr-defined]
        waiter.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
        waiter.start()


def load_untraced(
    steps_into: Callable[[str], bool],
    untraced: Callable[[], AbstractContextManager[None]],
    traced: Callable[[], AbstractContextManager[None]],
) -> None:
    """From now on load the modules that the debugger doesn't step into without its trace function.

    With one, `import torch` takes a second more (torch 2.13, Python 3.11: 4.8 s of CPU for all of
    a `tensorpoint run`, 3.8 without). A module that is stepped into is traced while it is loaded,
    also where a library imports it.
    """
    if not any(isinstance(finder, _Untracing) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Untracing(steps_into, untraced, traced))


def _is_imported(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def _is_under_way(name: str) -> bool:
    """Whether a thread imports it, from before it looks for it, or waits for one that does."""
    locks: Any = getattr(sys.modules["_frozen_importlib"], "_module_locks", ())
    return name in locks or name in sys.modules


def _wait_for(name: str, finder: _Finder) -> None:
    """See to the imports that don't meet the finder, since they began before it was there."""
    while not finder.is_done and not _is_imported(name):
        if name not in sys.modules:
            if not _is_under_way(name) and finder in sys.meta_path:
                return
            finder.look_out()  # that import failed; the program may try again
        time.sleep(_POLL_SECONDS)
    finder.finish()


class _Finder(importlib.abc.MetaPathFinder):
    """Steps aside for the real finders and wraps the loader they return.

    It stays until an import has succeeded: one may fail, and a program may only ask for the spec
    (`importlib.util.find_spec`) to see whether the module is installed.
    """

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act
        self._asking = threading.local()  # the other finders, on this thread
        self._turn = threading.Lock()
        self.is_done = False

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
            self.finish()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def look_out(self) -> None:
        """Meet the imports that begin from now on, unless one has succeeded."""
        with self._turn:
            if not self.is_done and self not in sys.meta_path:
                sys.meta_path.insert(0, self)

    def finish(self) -> None:
        """Act, once: the module is imported."""
        with self._turn:
            if self.is_done:
                return
            self.is_done = True
        with suppress(ValueError):
            sys.meta_path.remove(self)
        self._act()


class _Untracing(importlib.abc.MetaPathFinder):
    """Steps aside for the real finders, too, and switches the trace function around each load."""

    def __init__(
        self,
        steps_into: Callable[[str], bool],
        untraced: Callable[[], AbstractContextManager[None]],
        traced: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._steps_into = steps_into
        self._untraced, self._traced = untraced, traced
        self._thread = _Loading()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        thread = self._thread
        others = (item for item in [*sys.meta_path] if item is not self)
        finds = (getattr(finder, "find_spec", None) for finder in others)
        specs = (find(fullname, path, target) for find in finds if find is not None)
        spec = next((found for found in specs if found is not None), None)
        if spec is None or spec.loader is None or not spec.has_location or spec.origin is None:
            return spec
        untrace = not self._steps_into(spec.origin)
        if untrace == thread.is_untraced:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            before = thread.is_untraced
            if untrace == before:  # reloaded elsewhere
                load(module)
                return
            thread.is_untraced = untrace
            try:
                with self._untraced() if untrace else self._traced():
                    load(module)
            finally:
                thread.is_untraced = before

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class _Loading(threading.local):
    #: Whether a module is being loaded untraced.
    is_untraced = False
