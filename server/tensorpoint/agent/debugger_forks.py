"""Forked children whose debug session never comes, since the adapter or their parent has ended.

pydevd holds a forked child until its session is configured. If the adapter goes away meanwhile it
holds it for good, where nobody sees it; that is fixed here: such a child goes on without a
debugger, as its parent does.

But if its parent died as well while it was held, it may not notice. torch's workers compare their
parent with the one that they began with, and that is then the process which adopts orphans: they
would wait for their next batch for ever. So a child of multiprocessing that is `daemon`, which is
to end with its parent, ends here.

A child inherits the connection of its parent's debugger. As long as it holds that, debugpy's
adapter doesn't see that the parent has died: it asks the dead one to disconnect, with its lock held
on which the child's session waits in turn. Ending took the 12 s after which we end the adapter.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

_LOOK_S = 0.1
#: The process that forks, or has forked this one.
_parent = 0


class _Over(BaseException):
    """The debug session that a child waits for has ended. Not for the program's handlers."""


def install(report: Callable[[str, Exception], None]) -> None:
    """Wrap what pydevd does in forked children. Harmless when called again."""
    pydevd: Any = sys.modules["pydevd"]
    original: Any = getattr(pydevd, "settrace_forked", None)
    if hasattr(original, "tensorpoint"):
        return
    try:
        parameters = [*inspect.signature(original).parameters]
        wait = [*inspect.signature(pydevd.PyDB.wait_for_ready_to_run).parameters]
        if (parameters, wait) != (["setup_tracing"], ["self"]):
            raise TypeError(f"unknown parameters {parameters}, {wait}")
    except (AttributeError, TypeError) as error:
        report("following forked children", error)
        return

    def settrace_forked(setup_tracing: bool = True) -> None:
        pydevd.PyDB.wait_for_ready_to_run = _wait
        try:
            original(setup_tracing)
        except _Over:
            _forget_tracing(pydevd)
        except Exception as error:  # out of os.fork() it would end in the parent's handlers
            _forget_tracing(pydevd)
            report("debugging a forked child", error)
        if os.getppid() != _parent and _is_daemonic():
            os._exit(1)

    settrace_forked.tensorpoint = True  # type: ignore[attr-defined]
    pydevd.settrace_forked = settrace_forked
    os.register_at_fork(before=_note_parent, after_in_child=_let_go_of_parents)


def _note_parent() -> None:
    """In the parent: by the time that its child looks, it may be dead."""
    global _parent  # noqa: PLW0603 - of the process
    _parent = os.getpid()


def _let_go_of_parents() -> None:
    """In the child, also where pydevd doesn't follow it; the parent's end stays open."""
    pydevd: Any = sys.modules["pydevd"]
    db = pydevd.get_global_debugger()
    for thread in (getattr(db, "reader", None), getattr(db, "writer", None)):
        if thread is not None:
            thread.sock.close()


def _wait(db: Any) -> None:
    """`PyDB.wait_for_ready_to_run`, as long as there is somebody to wait for."""
    while not db.ready_to_run:
        if db.pydb_disposed:
            raise _Over
        db.process_internal_commands()
        db._py_db_command_thread_event.clear()
        db._py_db_command_thread_event.wait(_LOOK_S)


def _forget_tracing(pydevd: Any) -> None:
    """Take out what the fork has of its parent's trace functions."""
    threading.settrace(None)  # type: ignore[arg-type]
    monitoring: Any = sys.modules.get("_pydevd_sys_monitoring.pydevd_sys_monitoring")
    if pydevd.PYDEVD_USE_SYS_MONITORING and monitoring is not None:
        monitoring.stop_monitoring(all_threads=True)
    else:
        sys.modules["pydevd_tracing"].SetTrace(None)


def _is_daemonic() -> bool:
    """Whether this process, just forked, is a multiprocessing one that ends with its parent."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_launch" and "process_obj" in frame.f_locals:
            return bool(getattr(frame.f_locals["process_obj"], "daemon", False))
        frame = frame.f_back
    return False
