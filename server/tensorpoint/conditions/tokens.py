"""The tokens of a condition, and messages for what the language has no use for.

`scan` cuts the text and refuses at the first character that cannot be part of any token, with a
hint where one knows what was meant; `check_order` refuses where values and operators don't take
turns. Python's parser would refuse as well, but the messages and offsets of its SyntaxError vary
between versions, and ours must not.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from typing import NoReturn

from .errors import ConditionError
from .metrics import METRICS
from .tree import quoted

MAX_TOKENS = 1_000
MAX_DEPTH = 50


@dataclass(frozen=True)
class Token:
    """A word, number, string or operator, and where it starts."""

    kind: str  # "string", "number", "name", "op"
    text: str
    start: int


_TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<string>"[^"]*"|'[^']*')
    | (?P<path>[^\W\d]\w*(?:\.[\w*]+)+)
    | (?P<number>(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[^\W\d]\w*)
    | (?P<refused>\*\*|//|&&?|\|\|?|===|=[<>]|<>|<<|>>|:=|!(?!=))
    | (?P<op>[=!<>]=|[-+*/<>=(),])
    """,
    re.VERBOSE,
)

_ODD_NUMBER = re.compile("0[0-9_]*[1-9_]|[0-9_.]*(?:__|_[.]|[.]_|_$).*")

_INSTEAD = {
    "&&": 'write "and"',
    "&": 'write "and"',
    "||": 'write "or"',
    "|": 'write "or"',
    "!": 'write "not"',
    "===": 'write "=="',
    "=>": 'write ">="',
    "=<": 'write "<="',
    "<>": 'write "!="',
    "≥": 'write ">="',
    "≤": 'write "<="',
    "≠": 'write "!="',
    "\N{MULTIPLICATION SIGN}": 'write "*"',
    "“": 'use straight quotes: "',
    "”": 'use straight quotes: "',
    "\N{LEFT SINGLE QUOTATION MARK}": "use straight quotes: '",
    "\N{RIGHT SINGLE QUOTATION MARK}": "use straight quotes: '",
    "#": "conditions have no comments",
    "\\": "conditions have no escapes; a module path needs none",
    ":": "layer:PATH is a breakpoint of its own, not part of a condition",
    ".": 'a module path goes into quotes, for example nonfinite("model.layers.*")',
}


def scan(text: str) -> list[Token]:
    """The tokens, or a ConditionError at the first character that cannot be part of any."""
    tokens: list[Token] = []
    at = 0
    opened = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ConditionError(_stray(text, at), text, at)
        kind, word = str(match.lastgroup), match.group()
        if fault := _lexical_fault(kind, word, text[match.end() : match.end() + 1]):
            raise ConditionError(fault, text, at)
        opened += {"(": 1, ")": -1}.get(word, 0)
        if opened > MAX_DEPTH:
            raise ConditionError(f"more than {MAX_DEPTH} parentheses are open here", text, at)
        if len(tokens) == MAX_TOKENS:
            message = f"a condition has at most {MAX_TOKENS:,} words and operators"
            raise ConditionError(message, text, at)
        if kind == "string" and tokens and tokens[-1].kind == "string":
            # Python would join them, to a string that the canonical text cannot quote.
            raise ConditionError("an operator is missing between two strings", text, at)
        if kind != "space":
            tokens.append(Token(kind, word, at))
        at = match.end()
    return tokens


def _stray(text: str, at: int) -> str:
    character = text[at]
    if character in "\"'":
        return "this string is not closed"
    shown = character if character.isprintable() else f"U+{ord(character):04X}"
    hint = _INSTEAD.get(character)
    return f'"{shown}" is not part of the condition language' + (f": {hint}" if hint else "")


def _lexical_fault(kind: str, word: str, after: str) -> str | None:
    """What is wrong with a token that the pattern found, `after` being the next character."""
    if kind == "refused":
        hint = _INSTEAD.get(word)
        return f'"{word}" is not part of the condition language' + (f": {hint}" if hint else "")
    if kind == "path":
        return f"a module path goes into quotes: {quoted(word)}"
    if kind == "number" and (
        after.isalnum() or after in ("_", ".") or len(word) > 100 or _ODD_NUMBER.fullmatch(word)
    ):
        return "numbers are written like 10, 0.5 or 1e-3"
    if kind == "string" and (fault := _glob_fault(word)):
        return fault
    if kind == "name":
        allowed = ("and", "or", "not", "True", "False")
        if keyword.iskeyword(word) and word not in allowed:
            return f'"{word}" is not part of the condition language'
        if not word.isidentifier():
            return f'"{word}" is not a name'
        if after and after in "\"'" and word not in allowed:
            return f"strings have no prefix: write {after}...{after}"
    return None


def _glob_fault(word: str) -> str | None:
    if "\\" in word:
        return "conditions have no escapes; a module path needs none"
    bad = next((c for c in word if c == "\0" or "\ud800" <= c <= "\udfff"), None)
    return None if bad is None else f"U+{ord(bad):04X} cannot be part of a string"


def check_order(text: str, tokens: list[Token], *, begun: bool) -> None:
    """Raises ConditionError where a value, an operator or a parenthesis is missing.

    `begun` says that a value stands before the first token, the metric that was left out.
    """

    def refuse(token: Token, message: str) -> NoReturn:
        raise ConditionError(message, text, token.start)

    have_value = begun
    before = Token("op", "", 0)
    open_at: list[tuple[Token, bool]] = []  # each "(" and whether it is a call's
    for token in tokens:
        word = token.text
        is_value = token.kind != "op" and word not in ("and", "or", "not")
        is_call = word == "(" and have_value and before.kind == "name"
        if is_value or word == "not" or (word == "(" and not is_call):
            if have_value:
                _refuse_neighbours(text, before, token)
            if word == "not" and before.text not in ("", "(", ",", "and", "or", "not"):
                refuse(token, 'put parentheses around the part with "not"')
        if is_value:
            have_value = True
        elif word == "(":
            open_at.append((token, is_call))
            have_value = False
        elif word == ")":
            if not open_at:
                refuse(token, 'this ")" closes nothing')
            _, was_call = open_at.pop()
            if not have_value and not (was_call and before.text in ("(", ",")):
                refuse(token, 'a value is missing before ")"')
            have_value = True
        elif word in ("=", ",") and not (have_value and open_at and open_at[-1][1]):
            refuse(token, 'to compare, write "=="' if word == "=" else 'no "," belongs here')
        elif not have_value and word not in ("not", "-"):
            refuse(token, f'a value is missing before "{word}"')
        else:
            have_value = False
        before = token
    if not have_value:
        refuse(before, f'a value is missing after "{before.text}"')
    if open_at:
        refuse(open_at[-1][0], 'this "(" is not closed')


def _refuse_neighbours(text: str, before: Token, token: Token) -> NoReturn:
    """Two values without an operator between them."""
    for each in (token, before):
        small = each.text.lower()
        if small in ("and", "or", "not") and small != each.text:
            raise ConditionError(f'write "{small}" in small letters', text, each.start)
    message = f'an operator such as "and" or ">" is missing before {token.text}'
    raise ConditionError(message, text, token.start)


_BARE_GLOB = re.compile(r"(?:[\w.*?-]|\[!?[\w-]+\])+")


def bare_glob(text: str) -> str | None:
    """The module glob, if the whole text is one without quotes and nothing else."""
    if not _BARE_GLOB.fullmatch(text) or not re.search(r"[\w*?]", text):
        return None
    try:
        float(text)
    except ValueError:
        own = text in METRICS or text == "last" or keyword.iskeyword(text)
        return None if own else text
    return None
