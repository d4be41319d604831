"""Which names come near to one that there is not, for what says so."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

_MOST = 3
_CLOSE = 0.5
_CLOSE_PART = 0.7
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def near(pattern: str, names: Sequence[str]) -> list[str]:
    """At most three of `names` that `pattern` may have been meant for, the likeliest first."""
    core = pattern.strip("*.")
    last = core.rpartition(".")[2]
    lasts = {name.rpartition(".")[2]: name for name in reversed(names)}
    found = [
        *(name for name in names if name.endswith("." + core)),
        *difflib.get_close_matches(core, names, _MOST, _CLOSE),
        *(lasts[part] for part in difflib.get_close_matches(last, lasts, _MOST, _CLOSE_PART)),
    ]
    return list(dict.fromkeys(found))[:_MOST]


def below_the_root(pattern: str, paths: Sequence[str]) -> str:
    """The glob without a first part that names the model itself, where that matches; else ""."""
    rest = pattern.partition(".")[2]
    names_something = bool(rest.strip("*.?"))
    return rest if names_something and any(fnmatchcase(path, rest) for path in paths) else ""


def no_layer(pattern: str, known: Sequence[tuple[str, str]]) -> str:
    """Why a layer breakpoint stops nowhere: there is no such path or class among those known."""
    paths, kinds = [path for path, _ in known if path], [kind for _, kind in known]
    found = near(pattern, list(dict.fromkeys([*paths, *kinds])))
    text = f"no layer so far is called {pattern}, by its path or class"
    return f"{text}; near to it: {', '.join(found)}" if found else text


def without_numbers(names: Sequence[str]) -> list[str]:
    """One glob for the layers that differ by their number: `layers.*.mlp`."""
    return list(dict.fromkeys(_NUMBER.sub("*", name) if "." in name else name for name in names))
