"""Where in the file a frame is: the span of its instruction, with columns in bytes."""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any

from ...wire.shapes import Span


def span_of(code: CodeType, instruction: int, line: int) -> Span:
    """The span of an instruction, of no width before Python 3.11, which has no columns."""
    if sys.version_info >= (3, 11):
        first, last, col, end_col = list(code.co_positions())[instruction // 2]
        if first is not None and last is not None and col is not None and end_col is not None:
            return Span(first, col, last, end_col)
    return Span(line, 0, line, 0)


def place_in(file: str, frame: Any) -> Span | None:
    """The innermost place of `file` on a stack."""
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return span_of(frame.f_code, frame.f_lasti, frame.f_lineno) if frame is not None else None
