"""One document of a client with what is known of it: all that the features read."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property

from lsprotocol import types
from pygls.workspace import PositionCodec

from ..wire.shapes import ShapeHint, ShapeTable, Span, TracedCall
from .settings import Shapes
from .sources import Part, Source, parsed


@dataclass(frozen=True)
class View:
    """Spans are those of the source, ranges those of the client, in its units."""

    source: Source
    part: Part
    #: In the place of the text as it is now.
    table: ShapeTable
    settings: Shapes
    codec: PositionCodec
    #: Why there is no newer table, in a sentence.
    problem: str = ""

    @cached_property
    def tree(self) -> ast.Module | None:
        """The source as Python reads it; None while it is half-written."""
        return parsed(self.source.text)

    @cached_property
    def hints(self) -> tuple[ShapeHint, ...]:
        """The hints in this document, by place."""
        mine = (hint for hint in self.table.hints if self.holds(hint.span))
        return tuple(sorted(mine, key=lambda hint: (hint.span.line, hint.span.col)))

    @cached_property
    def calls(self) -> tuple[TracedCall, ...]:
        """The traced classes and functions of this document."""
        return tuple(call for call in self.table.calls if self.holds(call.span))

    def holds(self, span: Span) -> bool:
        """Whether the span is in this document, and its text long enough for it."""
        first, lines = self.part.first, self.part.lines
        last = span.end_line - first - 1
        return first < span.line and last < len(lines) and span.end_col <= len(lines[last])

    def range(self, span: Span) -> types.Range:
        """A span of this document as the client counts."""
        return types.Range(
            self.position(span.line, span.col), self.position(span.end_line, span.end_col)
        )

    def position(self, line: int, col: int) -> types.Position:
        """A place in this document as the client counts."""
        here = types.Position(line - self.part.first - 1, col)
        return self.codec.position_to_client_units(self.part.lines, here)

    def place(self, position: types.Position) -> tuple[int, int]:
        """Line and column in the source, of a position that the client gave."""
        # The codec changes a position beyond the end of its line.
        given = types.Position(position.line, position.character)
        here = self.codec.position_from_client_units(self.part.lines, given)
        return here.line + self.part.first + 1, here.character

    def line(self, number: int) -> str:
        """The text of a line of the source."""
        return self.part.lines[number - self.part.first - 1]


def contains(span: Span, line: int, col: int) -> bool:
    """Whether a place is in a span, or right behind it."""
    return (span.line, span.col) <= (line, col) <= (span.end_line, span.end_col)


def size(span: Span) -> tuple[int, int]:
    """By how much a span is larger than another."""
    return span.end_line - span.line, span.end_col - span.col
