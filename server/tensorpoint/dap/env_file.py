"""Reads `envFile`: NAME=value lines, as VS Code's Python extension and dotenv understand them.

`export` in front, quotes (double ones may hold \\n and span lines), `${NAME}` for what was set
before (not in single quotes) and comments are understood. A line that is none of this is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_ITEM = re.compile(
    r"""
    [ \t]* (?: export [ \t]+ )? (?P<name> [A-Za-z_]\w* ) [ \t]* = [ \t]*
    (?: '(?P<single> [^']* )' | "(?P<double> (?: \\. | [^"\\] )* )" | (?P<bare> (?!['"]) [^\n]*? ) )
    (?: [ \t]+ \#[^\n]* | [ \t]* ) (?: \r?\n | \Z )
    """,
    re.VERBOSE | re.DOTALL,
)
_NOTHING = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\r?\n|\Z)")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}
_REFERENCE = re.compile(r"(?<!\\)\$\{([A-Za-z_]\w*)\}")


def read_env_file(path: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables set in the file; `environment` is what `${NAME}` falls back to.

    Raises OSError if it can't be read, and ValueError, with the number of the line, if it is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8") from None
    found: dict[str, str] = {}

    def value_of(reference: re.Match[str]) -> str:
        name = reference[1]
        return found.get(name, environment.get(name, ""))

    position = 0
    while position < len(text):
        item = _NOTHING.match(text, position) or _ITEM.match(text, position)
        if item is None:
            line = text.count("\n", 0, position) + 1
            raise ValueError(f"{path}:{line}: expected NAME=value")
        position = item.end()
        if item.re is _NOTHING:
            continue
        single, double, bare = item["single"], item["double"], item["bare"]
        if single is not None:
            value = single
        elif double is not None:
            value = _ESCAPE.sub(_unescape, _REFERENCE.sub(value_of, double))
        else:
            value = _REFERENCE.sub(value_of, bare)
        found[item["name"]] = value
    return found


def _unescape(escape: re.Match[str]) -> str:
    return _ESCAPED.get(escape[1], escape[1])
