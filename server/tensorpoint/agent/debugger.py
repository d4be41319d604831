"""Stops in pydevd, whose API for this is private.

What touches pydevd is this and the modules named `debugger_...`.

How a stop works (measured against the alternatives on Python 3.11-3.12, with and without
`sys.monitoring`): the guarded synchronous suspend that pydevd's own `trigger_exception_handler`
uses. Tracing is paused on this thread, the thread is marked suspended and waits *in our hook*,
presenting the user's frame as the topmost one. It stops on exactly the calling line with locals
alive, and next/stepIn/stepOut from there behave. `settrace(stop_at_frame=...)` lands one line late
and is the fallback for a pydevd that lacks the needed names; `debugpy.breakpoint()` does not stop.

The reason of a stop travels inside pydevd's own suspend event (`_annotate` below), so that it is
atomic with the stop and needs no second channel.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Protocol

from .debugger_files import (
    connected,
    hide_agent,
    is_filtered,
    reveal,
    revealed_meanwhile,
    wrap_filters,
)
from .debugger_threads import hand_step_over, step_by, thread_of, waiting_frame, wrap_stacks

#: Annotations of stops that are about to be announced, by thread ident.
_announcing: dict[int, dict[str, Any]] = {}
#: What is shown of the threads that are suspended now, by thread ident.
_shown: dict[int, dict[str, Any]] = {}
_wrapped: set[int] = set()


class Described(Protocol):
    """What is told of an exception: parts of the `stopped` event, and the frame to show on top."""

    @property
    def body(self) -> dict[str, Any]: ...

    @property
    def frame(self) -> FrameType: ...


def attached() -> bool:
    """Whether a debugger is connected to this process and has finished configuring."""
    db = connected()
    return db is not None and db.ready_to_run and not db.pydb_disposed and db.is_attached()


def evaluating() -> bool:
    """Whether what runs on this thread is an expression of the user's.

    The thread is suspended then, or, for an expression without a frame, it is one of pydevd's own,
    on which a stop would hang the debugger.
    """
    db = connected()
    if db is None:
        return False
    thread = threading.current_thread()
    return bool(
        getattr(thread, "pydev_do_not_trace", False)
        or db.set_additional_thread_info(thread).is_in_wait_loop
    )


class _NoThread:
    is_in_wait_loop = False


def thread_state() -> Any:
    """For a thread of the program: what has `is_in_wait_loop` while it is suspended.

    It is suspended and runs something: an expression of the user's. To be asked for often, where
    `evaluating` is too slow.
    """
    db = connected()
    return _NoThread if db is None else db.set_additional_thread_info(threading.current_thread())


def prepare(
    on_detach: Callable[[], None], on_attach: Callable[[], None], *, hides_agent: bool = False
) -> bool:
    """Make pydevd answer promptly and carry our reasons. Harmless when called again.

    True if this was news to it; False without pydevd.

    `hides_agent` is for sessions that our adapter did not start: it tells pydevd itself.

    Both are called on pydevd's reader thread: `on_attach` when a client has configured its session,
    `on_detach` when it goes away, also when it vanishes: pydevd then resumes all threads but keeps
    its connection to debugpy's adapter, and a later stop would wait for nobody.
    """
    db = connected()
    if db is None or id(db) in _wrapped:
        return False
    _wrapped.add(id(db))
    # pydevd writes header and body in two calls; with Nagle and delayed ACK each answer takes
    # 45 ms (step to stopped 48 -> 2.5 ms, evaluate 48 -> 1.3 ms without).
    sock = getattr(db.writer, "sock", None)
    if isinstance(sock, socket.socket) and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _wrap_suspend_notification(db)
    _wrap_exception_info()
    wrap_stacks()
    wrap_filters(db)
    _wrap_exceptions(db)
    if hides_agent:
        hide_agent(db)
    on_disconnect, on_configured = db.on_disconnect, db.on_configuration_done

    def disconnect() -> None:
        on_disconnect()
        on_detach()

    def configured() -> None:
        on_configured()
        on_attach()

    db.on_disconnect, db.on_configuration_done = disconnect, configured
    return True


def send_event(event: str, body: dict[str, Any]) -> None:
    """Send a DAP event to the adapter; dropped if no debugger is connected."""
    db = connected()
    if db is None:
        return
    from _pydevd_bundle.pydevd_net_command import NetCommand  # type: ignore[import-not-found]

    message = {"type": "event", "event": event, "body": body}
    db.writer.add_command(NetCommand(_CMD_RETURN, 0, message, is_json=True))


_CMD_RETURN = 502


def forget_code() -> None:
    """Functions have other code now: what pydevd knows of theirs, such as where to skip, is old."""
    db = connected()
    if db is not None:
        db._clear_caches()


def suspend(frame: FrameType, body: dict[str, Any]) -> None:
    """Suspend this thread showing `frame` on top; returns when the user resumes.

    `body` is merged into the `stopped` event.
    """
    db = connected()
    if db is None:
        return
    thread = threading.current_thread()
    try:
        guarded = _guarded_suspend(db, thread)
    except (ImportError, AttributeError):
        db_set_trace = sys.modules["pydevd"].settrace
        _announcing[threading.get_ident()] = body
        db_set_trace(suspend=True, trace_only_current_thread=True, stop_at_frame=frame)
        return
    reveal(db, frame)
    _announcing[threading.get_ident()] = body
    _shown[threading.get_ident()] = body
    try:
        guarded(frame)
    finally:
        _announcing.pop(threading.get_ident(), None)
        del _shown[threading.get_ident()]


def has_trace_function() -> bool:
    """Whether every Python frame costs: from 3.12 on pydevd has events for some code only."""
    return connected() is not None and sys.version_info < (3, 12)


def describe_exceptions(
    describe: Callable[[type[BaseException], Any, TracebackType | None], Described | None],
    calls_torch: Callable[[FrameType], bool],
    report: Callable[[str, Exception], None],
) -> None:
    """Let stops for exceptions say more: what `describe` tells, at the frame that it tells.

    An exception in a frame of which `calls_torch` is true is not stopped at there, but where it
    reaches the code that called.
    """
    _exceptions.describe, _exceptions.calls_torch, _exceptions.report = (
        describe,
        calls_torch,
        report,
    )


def enable_tracing() -> None:
    """Trace this thread: one that C code started (autograd's) has no trace function on 3.11."""
    db = connected()
    if db is not None and sys.version_info < (3, 12) and sys.gettrace() is None:
        db.enable_tracing()


@contextmanager
def untraced() -> Generator[None]:
    """What this thread runs is not traced: no breakpoint stops it, no step ends in it."""
    db = connected()
    if db is None:
        yield
        return
    from _pydevd_bundle.pydevd_constants import (  # type: ignore[import-not-found]
        PYDEVD_USE_SYS_MONITORING,
    )

    if PYDEVD_USE_SYS_MONITORING:
        from _pydevd_sys_monitoring import (  # type: ignore[import-not-found]
            pydevd_sys_monitoring as monitoring,
        )

        paused = monitoring.suspend_current_thread_tracing()
        try:
            yield
        finally:
            if paused:
                monitoring.resume_current_thread_tracing()
        return
    import pydevd_tracing  # type: ignore[import-not-found]

    tracer = sys.gettrace()
    pydevd_tracing.SetTrace(None)  # pydevd warns of those who call sys.settrace themselves
    try:
        yield
    finally:
        pydevd_tracing.SetTrace(tracer)


@contextmanager
def traced() -> Generator[None]:
    """Within what is `untraced`, by a trace function: this is traced all the same."""
    db = connected()
    if db is None:
        yield
        return
    import pydevd_tracing  # type: ignore[import-not-found]

    db.enable_tracing()
    try:
        yield
    finally:
        pydevd_tracing.SetTrace(None)


def _guarded_suspend(db: Any, thread: threading.Thread) -> Callable[[FrameType], None]:
    from _pydevd_bundle.pydevd_additional_thread_info import (  # type: ignore[import-not-found]
        set_additional_thread_info,
    )
    from _pydevd_bundle.pydevd_comm_constants import (  # type: ignore[import-not-found]
        CMD_SET_BREAK,
    )
    from _pydevd_bundle.pydevd_constants import (  # type: ignore[import-not-found]
        PYDEVD_USE_SYS_MONITORING,
        PYTHON_SUSPEND,
    )

    monitoring: Any = None
    if PYDEVD_USE_SYS_MONITORING:
        from _pydevd_sys_monitoring import (  # type: ignore[import-not-found]
            pydevd_sys_monitoring as monitoring,
        )
    info = set_additional_thread_info(thread)
    wait, mark = db.do_wait_suspend, db.set_suspend

    def run(frame: FrameType) -> None:
        paused = bool(monitoring and monitoring.suspend_current_thread_tracing())
        info.is_tracing += 1
        try:
            info.pydev_original_step_cmd = CMD_SET_BREAK
            info.suspend_type = PYTHON_SUSPEND
            mark(thread, CMD_SET_BREAK)
            wait(thread, frame, "line", None)
            owner = thread_of(frame)
            if owner is not None and owner is not thread:
                hand_step_over(db, info, set_additional_thread_info(owner), owner, frame)
        finally:
            info.is_tracing -= 1
            if monitoring and paused:
                monitoring.resume_current_thread_tracing()

    return run


def _wrap_suspend_notification(db: Any) -> None:
    """Merge our annotation into the `stopped` event.

    Only the single notification is wrapped: the per-thread one returns a NULL command when single
    notifications are on, as debugpy sets it.
    """
    factory = db.cmd_factory
    original = factory.make_thread_suspend_single_notification

    def make_thread_suspend_single_notification(
        py_db: Any, thread_id: Any, thread: threading.Thread, stop_reason: Any
    ) -> Any:
        command = original(py_db, thread_id, thread, stop_reason)
        body = _announcing.pop(thread.ident or 0, None)
        if body is not None and isinstance(getattr(command, "as_dict", None), dict):
            message = dict(command.as_dict)
            message["body"] = {**message["body"], **body}
            return type(command)(command.id, message["seq"], message, is_json=True)
        return command

    factory.make_thread_suspend_single_notification = make_thread_suspend_single_notification


def _wrap_exception_info() -> None:
    """Answer `exceptionInfo` with the diagnosis where debugpy's own adapter serves the client.

    VS Code asks for it at each stop for an exception and shows the answer in place of our text.
    """
    comm: Any = sys.modules.get("_pydevd_bundle.pydevd_comm")
    original = getattr(comm, "build_exception_info_response", None)
    if original is None or hasattr(original, "tensorpoint"):
        return

    def build_exception_info_response(
        db: Any, thread_id: Any, thread: Any, *args: Any, **named: Any
    ) -> Any:
        response = original(db, thread_id, thread, *args, **named)
        body = _shown.get(thread.ident)
        if body is not None:
            answer, text = response.body, body["text"]
            answer.exceptionId = body["description"].removeprefix("Paused on ")
            answer.description = answer.details.message = text
            if "torchError" in body:
                answer.details.typeName = body["torchError"]["type"]
                return response
            answer.breakMode = "always"
            answer.details.typeName = body["tensorpoint"]["event"]
            answer.details.stackTrace = answer.details.source = None
        return response

    build_exception_info_response.tensorpoint = True  # type: ignore[attr-defined]
    comm.build_exception_info_response = build_exception_info_response


#: Called on a thread before it is suspended, for whatever reason, with the frame that is shown, and
#: when it goes on.
_suspensions: tuple[Callable[[FrameType], None], Callable[[], None]] = (
    lambda frame: None,
    lambda: None,
)


def on_suspension(before: Callable[[FrameType], None], after: Callable[[], None]) -> None:
    """Have these called around each suspension of a thread, on it. They must not raise."""
    global _suspensions  # noqa: PLW0603 - one agent per process
    _suspensions = before, after


class _Exceptions:
    """How exceptions are described; set once, by the agent."""

    describe: Callable[..., Described | None] | None = None
    calls_torch: Callable[[FrameType], bool] | None = None
    report: Callable[[str, Exception], None] | None = None


_exceptions = _Exceptions()


def _wrap_exceptions(db: Any) -> None:
    """Stop for exceptions of torch's at the line that called it, and say what it was called with.

    pydevd asks `exclude_exception_by_filter` at each frame that an exception passes through, and
    hands the traceback that it shows to `do_wait_suspend`.
    """
    exclude, wait = db.exclude_exception_by_filter, db.do_wait_suspend

    def exclude_exception_by_filter(exception_breakpoint: Any, trace: Any) -> bool:
        if exclude(exception_breakpoint, trace):
            return True
        if trace is None or _exceptions.calls_torch is None:
            return False
        try:  # torch's own developers have it in their project and stop in it
            return not db.in_project_scope(trace.tb_frame) and _exceptions.calls_torch(
                trace.tb_frame
            )
        except Exception as error:
            _fault("looking at an exception", error)
            return False

    def do_wait_suspend(
        thread: Any, frame: FrameType, event: str, arg: Any, exception_type: str | None = None
    ) -> Any:
        before, after = _suspensions
        before(frame)
        waiting = waiting_frame()
        if waiting is not None and waiting is not frame:
            step_by(db, waiting, None)
        try:
            return wait_described(thread, frame, event, arg, exception_type)
        finally:
            if waiting is not None and waiting is not frame:
                step_by(db, waiting, thread)
            after()

    def wait_described(
        thread: Any, frame: FrameType, event: str, arg: Any, exception_type: str | None
    ) -> Any:
        found = described(arg) if event == "exception" else None
        if found is None:
            return wait(thread, frame, event, arg, exception_type)
        ident = thread.ident
        with revealed_meanwhile(db):  # the exception has left that file: nothing steps on there
            try:
                _announcing[ident] = _shown[ident] = found.body
                return wait(thread, *_shown_as(db, frame, arg, found.frame, exception_type))
            finally:
                _announcing.pop(ident, None)
                _shown.pop(ident, None)

    db.exclude_exception_by_filter = exclude_exception_by_filter
    db.do_wait_suspend = do_wait_suspend


def described(arg: Any) -> Described | None:
    """What is told of an exception, given as type, value and traceback; None for no more."""
    if _exceptions.describe is None:
        return None
    try:
        return _exceptions.describe(*arg)
    except Exception as error:
        _fault("describing an exception", error)
        return None


def _fault(activity: str, error: Exception) -> None:
    if _exceptions.report is not None:
        _exceptions.report(activity, error)


def _shown_as(
    db: Any, frame: FrameType, arg: Any, caller: FrameType, exception_type: str | None
) -> tuple[FrameType, str, Any, str | None]:
    """What pydevd is to show: the stack with `caller` on top instead of the frames of torch.

    `frame` is where the thread is (or, of an uncaught exception, was); steps go on from there.
    """
    error_type, value, trace = arg
    entries: list[TracebackType] = []
    while trace is not None:
        entries.append(trace)
        trace = trace.tb_next
    places = [entry.tb_frame for entry in entries]
    if caller not in places:
        return frame, "exception", arg, exception_type
    kept = entries[: places.index(caller) + 1]
    shortened: TracebackType | None = None
    for entry in reversed(kept):
        shortened = TracebackType(shortened, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    if exception_type == _UNHANDLED:
        frame = caller
    elif exception_type != _USER_UNHANDLED and all(
        is_filtered(db, entry.tb_frame) for entry in kept[1:]
    ):
        # The first stop for this exception, and what called torch is a library (the model's) that
        # the exception has left: the frames are listed, the thread is below.
        exception_type = _USER_UNHANDLED if len(kept) > 1 else exception_type
    reveal(db, caller)
    return frame, "exception", (error_type, value, shortened), exception_type


#: How pydevd tells an exception that nobody caught, and one that left the user's code.
_UNHANDLED, _USER_UNHANDLED = "UNHANDLED", "USER_UNHANDLED"
