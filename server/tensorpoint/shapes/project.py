"""What a project says in its pyproject.toml of the inputs of its models, under [tool.tensorpoint].

inputs = "ids: i64[B, T], T <= 512"        for all files

[[tool.tensorpoint.shapes]]
target = "src/net.py:Net"                  a file (or a glob) and a class or function in it
factory = "make_net('tiny')"               in the names of that file, or package.module:function
inputs = "x: f32[B, 3, H, W]"
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

from ..wire.shapes import KnownCall

tomllib: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

_NAME = "pyproject.toml"
_KEYS = ("target", "factory", "inputs")


class BadProject(ValueError):
    """Settings that can't be read; the text says which and why."""


def calls_in_project(path: Path) -> tuple[KnownCall, ...]:
    """What the project that a file is in says of its calls. Raises `BadProject`."""
    for folder in path.parents:
        project = folder / _NAME
        try:
            text = project.read_text(encoding="utf-8")
        except (OSError, UnicodeError):
            continue
        if "tool.tensorpoint" not in text:
            continue
        try:
            tool: Any = tomllib.loads(text).get("tool", {}).get("tensorpoint")
        except (ValueError, AttributeError) as error:  # no TOML, or another kind of "tool"
            raise BadProject(f"{project}: {error}") from None
        if tool is not None:
            try:
                return tuple(_read(tool, path.relative_to(folder).as_posix()))
            except BadProject as error:
                raise BadProject(f"{project}, [tool.tensorpoint]: {error}") from None
    return ()


def _read(tool: Any, file: str) -> Iterator[KnownCall]:
    fields = _table(tool, "it", ("inputs", "shapes"))
    if "inputs" in fields:
        yield KnownCall("", "spec", _text(fields, "inputs"))
    shapes = fields.get("shapes", [])
    if not isinstance(shapes, list):
        raise BadProject("shapes is a list of tables: [[tool.tensorpoint.shapes]]")
    for number, each in enumerate(cast("list[Any]", shapes), 1):
        one = _table(each, f"shapes {number}", _KEYS)
        target = _text(one, "target")
        if not target:
            raise BadProject(f'shapes {number} has no target, such as "src/net.py:Net"')
        pattern, _, name = target.partition(":")
        if fnmatch(file, pattern):
            yield KnownCall(name, "spec", _text(one, "inputs"), _text(one, "factory"))


def _table(value: Any, what: str, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadProject(f"{what} is no table")
    fields = cast("dict[str, Any]", value)
    for key in fields:
        if key not in known:
            raise BadProject(f"{what} has {key!r}; known are {', '.join(known)}")
    return fields


def _text(fields: dict[str, Any], key: str) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str):
        raise BadProject(f"{key} is {value!r}, no text")
    return value
