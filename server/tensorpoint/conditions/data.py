"""The condition of a data breakpoint: about the one tensor that it is set on.

    changed                      (also without a condition) it was written to, or is another tensor
    nonfinite and step > 100     it has a NaN or an infinity
    norm > 3, absmax >= 6e4      its 2-norm, its largest magnitude
    reshaped                     its shape or its dtype is another
    no_grad                      an optimizer is about to step and it got no gradient

The words are those of the condition language where it has them; a glob has no meaning here. What
does not change while a condition is true is no news: it fires when it turns true, `changed` at each
change.
"""

from __future__ import annotations

import ast
import difflib
import operator
from collections.abc import Callable
from dataclasses import dataclass

from .errors import ConditionError

#: The words, and whether each is a number.
WORDS: dict[str, bool] = {
    "changed": False,
    "nonfinite": False,
    "reshaped": False,
    "no_grad": False,
    "norm": True,
    "absmax": True,
    "step": True,
    "optimizer_step": True,
}
#: What DAP's `breakpointModes` offer: a word, and its label.
MODES: dict[str, str] = {
    "changed": "Value changes",
    "nonfinite": "Becomes NaN/Inf",
    "reshaped": "Shape or dtype changes",
    "no_grad": "Gets no gradient in a step",
}
_COMPARE: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
#: Of a word its value now; asked for only where the condition reads it.
Read = Callable[[str], "float | bool | None"]


@dataclass(frozen=True)
class DataCondition:
    """A parsed condition. `words` are those that it reads."""

    text: str
    tree: ast.expr
    words: frozenset[str]

    def holds(self, read: Read) -> bool | None:
        """Whether it is true; None if something that decides is not known."""
        return _truth(self.tree, read)


def parse_data(text: str) -> DataCondition:
    """The condition that `text` says; blank is `changed`. Raises ConditionError."""
    written = text.strip() or "changed"
    try:
        tree = ast.parse(written, mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as error:
        offset = (getattr(error, "offset", 1) or 1) - 1
        raise ConditionError(_syntax(written), written, offset) from None
    words: set[str] = set()
    tree = _checked(tree, written, words, truth=True)
    return DataCondition(written, tree, frozenset(words))


def _syntax(text: str) -> str:
    if "=" in text and not any(sign in text for sign in ("==", ">=", "<=", "!=")):
        return 'a comparison is written "==", not "="'
    return f"this is no condition on a tensor. It can say {', '.join(WORDS)}, such as norm > 3"


def _checked(node: ast.expr, text: str, words: set[str], *, truth: bool) -> ast.expr:
    """The node in the few forms that are known. Raises ConditionError."""

    def fail(message: str) -> ConditionError:
        return ConditionError(message, text, node.col_offset)

    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.args or node.keywords:
            raise fail(f"{node.func.id} takes no argument here: it is about the watched tensor")
        node = node.func
    if isinstance(node, ast.Name):
        if node.id not in WORDS:
            raise fail(_unknown(node.id))
        if WORDS[node.id] is truth:
            kind = "a number: compare it" if truth else "true or false, not a number"
            raise fail(f"{node.id} is {kind}")
        words.add(node.id)
        return node
    if truth and isinstance(node, ast.BoolOp):
        node.values = [_checked(item, text, words, truth=True) for item in node.values]
        return node
    if truth and isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        node.operand = _checked(node.operand, text, words, truth=True)
        return node
    if truth and isinstance(node, ast.Compare):
        if not all(type(sign) in _COMPARE for sign in node.ops):
            raise fail("compare by >, >=, <, <=, == or !=")
        node.left = _checked(node.left, text, words, truth=False)
        node.comparators = [_checked(item, text, words, truth=False) for item in node.comparators]
        return node
    if not truth and _number(node) is not None:
        return node
    raise fail("expected a condition such as norm > 3" if truth else "expected a number")


def _unknown(word: str) -> str:
    close = difflib.get_close_matches(word, WORDS, 1)
    return f"unknown word {word!r}" + (f": did you mean {close[0]}?" if close else _known())


def _known() -> str:
    return f"; known are {', '.join(WORDS)}"


def _number(node: ast.expr) -> float | None:
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        sign = -1 if isinstance(node.op, ast.USub) else 1
        node = node.operand
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return sign * float(node.value)  # pyright: ignore[reportArgumentType]
    return None


def _truth(node: ast.expr, read: Read) -> bool | None:
    if isinstance(node, ast.BoolOp):
        ends = isinstance(node.op, ast.Or)
        outcomes: list[bool | None] = []
        for item in node.values:
            outcome = _truth(item, read)
            if outcome is ends:
                return ends
            outcomes.append(outcome)
        return None if None in outcomes else not ends
    if isinstance(node, ast.UnaryOp):
        outcome = _truth(node.operand, read)
        return None if outcome is None else not outcome
    if isinstance(node, ast.Compare):
        values = [_value(item, read) for item in (node.left, *node.comparators)]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return all(
            _COMPARE[type(sign)](left, right)
            for sign, left, right in zip(node.ops, known, known[1:])
        )
    value = read(node.id) if isinstance(node, ast.Name) else None
    return None if value is None else bool(value)


def _value(node: ast.expr, read: Read) -> float | None:
    if isinstance(node, ast.Name):
        value = read(node.id)
        return None if value is None else float(value)
    return _number(node)
