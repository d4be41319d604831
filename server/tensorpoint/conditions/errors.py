"""What is wrong with a text, and where."""

from __future__ import annotations

import re

_LINE = 160


class ConditionError(ValueError):
    """A text that is not a condition, or one that is refused; `str()` is the message.

    `offset` is the 0-based place in `text`, the text as it was given, always inside of it.
    """

    def __init__(self, message: str, text: str = "", offset: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.text = text
        self.offset = max(0, min(offset, len(text) - 1))

    def caret(self) -> str:
        """Two lines: the text (or the part of a long one around the place) and a `^` below."""
        start = 0 if len(self.text) <= _LINE else max(0, self.offset - _LINE // 2)
        shown = re.sub(r"[\s\x00-\x1f\x7f]", " ", self.text[start : start + _LINE])
        return f"{shown}\n{' ' * (self.offset - start)}^"
