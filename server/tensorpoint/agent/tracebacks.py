"""Tracebacks without our frames: an exception of the program's is about the program.

What stands between the program and torch is taken out on the way, where the exception passes it:

    except BaseException as error:
        leave_out_ours(error)
        raise

A bare `raise` adds no frame of its own. Python 3.10 puts the traceback back as it was; there only
what we print ourselves is without us (`without_ours`).
"""

from __future__ import annotations

from types import TracebackType

from .frames import AGENT_FOLDER


def leave_out_ours(error: BaseException) -> None:
    """Take the frames that an exception has come through last, as far as they are ours, out of it.

    Those further in are the program's and torch's, and are kept.
    """
    trace = error.__traceback__
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    error.__traceback__ = trace


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without any frame of ours; it is changed. None if nothing is left."""
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    entry = trace
    while entry is not None:
        inner = entry.tb_next
        while inner is not None and _is_ours(inner):
            inner = inner.tb_next
        entry.tb_next = inner
        entry = inner
    return trace


def _is_ours(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(AGENT_FOLDER)
