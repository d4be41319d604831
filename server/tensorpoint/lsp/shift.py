"""Keeps a table where it was while its text is edited: spans move with their lines.

A span whose lines have changed is gone until the next trace: a shape behind an expression that was
just rewritten would be wrong. Lines are compared, not edits followed, so that it makes no
difference how a text came to be what it is: typing, undo, a formatter or another branch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from ..wire.shapes import ShapeTable, Span

#: Where a line of the one text is in the other, from 1; those that have changed are not there.
Lines = Mapping[int, int]


def moved(before: Sequence[str], after: Sequence[str]) -> Lines:
    """Where the lines of `before` are in `after`."""
    shorter = min(len(before), len(after))
    # An edit is in one place mostly: what is alike around it need not be searched for.
    head = 0
    while head < shorter and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < shorter - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    lines = {line: line for line in range(1, head + 1)}
    # Empty lines are only looked at beside others: in 6,000 lines of which nothing else is left,
    # after a formatter say, comparing each with each took 6.6 s.
    middle = SequenceMatcher(
        lambda line: not line or line.isspace(),
        before[head : len(before) - tail],
        after[head : len(after) - tail],
        autojunk=False,
    )
    for a, b, size in middle.get_matching_blocks():
        lines.update((head + a + i + 1, head + b + i + 1) for i in range(size))
    lines.update((len(before) - i, len(after) - i) for i in range(tail))
    return lines


def shift_span(span: Span, lines: Lines) -> Span | None:
    """The span in the other text; None if one of its lines has changed."""
    first = lines.get(span.line)
    if first is None:
        return None
    by = first - span.line
    if any(lines.get(line) != line + by for line in range(span.line, span.end_line + 1)):
        return None
    return replace(span, line=first, end_line=span.end_line + by)


def shift(table: ShapeTable, lines: Lines) -> ShapeTable:
    """The table for the other text, without what stood in lines that have changed."""
    hints = [
        replace(hint, span=span)
        for hint in table.hints
        if (span := shift_span(hint.span, lines)) is not None
    ]
    diagnostics = [
        replace(
            found,
            span=span,
            related=tuple(
                replace(related, span=there)
                if related.path == table.path and (there := shift_span(related.span, lines))
                else related
                for related in found.related
            ),
        )
        for found in table.diagnostics
        if (span := shift_span(found.span, lines)) is not None
    ]
    calls = [
        replace(call, span=span, forward=call.forward and shift_span(call.forward, lines))
        for call in table.calls
        if (span := shift_span(call.span, lines)) is not None
    ]
    return replace(table, hints=tuple(hints), diagnostics=tuple(diagnostics), calls=tuple(calls))
