"""Which files the debugger shows and steps in, and what the client calls them. Touches pydevd.

Of the files that `justMyCode` hides, that of the stop frame is shown, and only that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

#: Files shown and stepped through although `justMyCode` would hide them: that of the stop frame.
_revealed: set[str] = set()
_AGENT_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


def connected() -> Any:
    """pydevd's own object where a debugger that speaks DAP is loaded; else None."""
    constants = sys.modules.get("_pydevd_bundle.pydevd_constants")
    db = constants.get_global_debugger() if constants is not None else None
    return db if hasattr(db, "on_configuration_done") else None  # PyCharm's pydevd speaks no DAP


def folder() -> str:
    """The folder of the debugger's own files, with a separator at its end."""
    pydevd = sys.modules.get("pydevd")
    return _AGENT_FOLDER if pydevd is None or not pydevd.__file__ else _folder(pydevd.__file__)


@cache
def _folder(pydevd_file: str) -> str:
    path = os.path.abspath(pydevd_file)
    for _ in range(3):  # debugpy/_vendored/pydevd/pydevd.py
        path = os.path.dirname(path)
    return path + os.sep


def client_path(frame: FrameType) -> str:
    """The file of `frame` as the client knows it: absolute, and mapped by `pathMappings`."""
    files = sys.modules.get("pydevd_file_utils")
    if files is None:
        name = frame.f_code.co_filename
        return name if name.startswith("<") else os.path.abspath(name)  # <ipython-input-...>
    path = files.get_abs_path_real_path_and_base_from_frame(frame)[0]
    return str(files.map_file_to_client(path)[0])


def client_file(path: str) -> str:
    """A file as the client knows it: absolute, and mapped by `pathMappings`."""
    files = sys.modules.get("pydevd_file_utils")
    if path.startswith("<"):  # <ipython-input-...>
        return path
    if files is None:
        return os.path.abspath(path)
    absolute = files.get_abs_path_real_path_and_base_from_file(path)[0]
    return str(files.map_file_to_client(absolute)[0])


def in_project(frame: FrameType) -> bool:
    """Whether `frame` runs the user's own code, by the debugger's notion of it."""
    db = connected()
    if db is None:
        name = frame.f_code.co_filename
        installed = "site-packages" in name or "dist-packages" in name
        return not (installed or name.startswith((_STANDARD_LIBRARY, "<frozen ", "<string>")))
    if frame.f_code.co_filename in _revealed:
        return False
    return not type(db).apply_files_filter(db, frame, frame.f_code.co_filename, True)


def steps_into(file: str) -> bool:
    """Whether the debugger stops in a file at all: with `justMyCode` not in a library's."""
    db = connected()
    if db is None:
        return False
    filtering = db._files_filtering
    excluded = filtering.exclude_by_filter(file, None)
    if excluded is not None:
        return not excluded
    return not filtering.use_libraries_filter() or bool(filtering.in_project_roots(file))


def hide_agent(db: Any) -> None:
    """Never trace the agent, nor list its frames."""
    external = db.dont_trace_external_files

    def custom_dont_trace_external_files(path: str) -> bool:
        return path.startswith(_AGENT_FOLDER) or bool(external(path))

    # By its name and these pydevd knows whether the patterns that a client sends are news.
    custom_dont_trace_external_files.start_patterns = getattr(  # type: ignore[attr-defined]
        external, "start_patterns", ()
    )
    custom_dont_trace_external_files.end_patterns = getattr(  # type: ignore[attr-defined]
        external, "end_patterns", ()
    )
    db.dont_trace_external_files = custom_dont_trace_external_files
    db.clear_dont_trace_start_end_patterns_caches()


def wrap_filters(db: Any) -> None:
    """Let the stop frame be listed and stepped in although it is library code.

    With `justMyCode`, pydevd leaves library frames out of the stack and lets `next` run on to the
    next line of the user's own code; a stop in a model's library file would show the training
    script and skip the rest of the forward.
    """
    apply_files_filter = db.apply_files_filter
    in_project_scope = db.in_project_scope

    def filtered(frame: FrameType, filename: str, force_check: bool) -> bool:
        if frame.f_code.co_filename in _revealed:
            return False
        return bool(apply_files_filter(frame, filename, force_check))

    def in_scope(frame: FrameType, absolute_filename: str | None = None) -> bool:
        mine: bool = in_project_scope(frame, absolute_filename)
        return mine or frame.f_code.co_filename in _revealed

    db.apply_files_filter = filtered
    db.in_project_scope = in_scope


def reveal(db: Any, frame: FrameType) -> None:
    """Show and step through the file of `frame`, and of those revealed before only that."""
    file = frame.f_code.co_filename
    if file in _revealed:
        return
    before = set(_revealed)
    _revealed.clear()
    if db.apply_files_filter(frame, file, True):
        _revealed.add(file)
    if _revealed != before:
        db._clear_caches()  # decisions to skip are cached per code object


def is_filtered(db: Any, frame: FrameType) -> bool:
    """Whether the debugger leaves the frame out, as a library's with `justMyCode`."""
    return bool(db.apply_files_filter(frame, frame.f_code.co_filename, True))


@contextmanager
def revealed_meanwhile(db: Any) -> Generator[None]:
    """What is revealed within is hidden again: nothing steps on there."""
    before = set(_revealed)
    try:
        yield
    finally:
        if _revealed != before:
            _revealed.clear()
            _revealed.update(before)
            db._clear_caches()
