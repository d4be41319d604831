"""Lines of a function that cut the graph of gradients, found in its source.

Candidates, not proof: that the line ran, and on which tensor, is not known.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

from ..frames import short_file
from .syntax import body_of, in_order, parse

#: Methods (and functions of torch's) whose result requires no gradient.
_METHODS = frozenset(
    {
        *("detach", "detach_", "item", "tolist", "numpy", "argmax", "argmin", "argsort"),
        *("long", "int", "bool", "multinomial", "from_numpy", "as_tensor", "tensor"),
    }
)
_MODES = frozenset({"no_grad", "inference_mode", "set_grad_enabled"})


@dataclass(frozen=True)
class Cut:
    """A line that may cut the graph; `is_mode` if it switches gradients off."""

    place: str
    text: str
    is_mode: bool


def cuts_in(code: CodeType) -> Iterator[Cut]:
    """The lines of a function that cut the graph, in the order of evaluation."""
    lines = linecache.getlines(code.co_filename)
    try:
        body = body_of(parse("".join(lines)), code) if lines else None
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return
    for path in in_order(body) if body is not None else ():
        node = path[-1]
        name = _name(node)
        if name is None:
            continue
        line: int = getattr(node, "lineno", 0)
        text = lines[line - 1].partition("#")[0].strip()
        yield Cut(f"{short_file(code.co_filename)}:{line}", text, name in _MODES)


def _name(node: ast.AST) -> str | None:
    """What cuts the graph there, if the node does."""
    if isinstance(node, ast.Attribute) and node.attr == "data" and isinstance(node.ctx, ast.Load):
        return "data"
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute):
        name = node.func.attr
        return name if name in _MODES or name in _METHODS else None
    name = node.func.id if isinstance(node.func, ast.Name) else None
    return name if name in _MODES else None
