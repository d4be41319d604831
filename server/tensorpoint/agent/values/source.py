"""What the source of the program says of a name: where it is assigned, where it is called.

Read from the files by `ast`, nothing is run. Where there is no source, nothing is known.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from textwrap import dedent
from types import CodeType
from typing import TypeGuard


@dataclass(frozen=True)
class Assignment:
    """A line that gives a name a value."""

    line: int
    is_argument: bool = False


@lru_cache(maxsize=256)
def assignments(kind: type) -> dict[str, tuple[str, int]]:
    """Names that the methods of a class assign to `self`, with the place of the first one."""
    source = _source_of(kind)
    if source is None:
        return {}
    found: dict[str, tuple[str, int]] = {}
    for node in ast.walk(source.tree):
        for target in _targets(node):
            if _is_of_self(target):
                found.setdefault(target.attr, (source.file, source.line_of(target)))
        registered = _registered(node)
        if registered is not None:
            name, call = registered
            found.setdefault(name, (source.file, source.line_of(call)))
    return found


def _registered(node: ast.AST) -> tuple[str, ast.Call] | None:
    """The name in `self.register_parameter("name", ...)`, and of a buffer or a module."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
        return None
    name = node.args[0]
    makes = ("register_parameter", "register_buffer", "register_module", "add_module")
    if node.func.attr in makes and isinstance(name, ast.Constant) and isinstance(name.value, str):
        return name.value, node
    return None


@lru_cache(maxsize=256)
def calls(kind: type) -> dict[str, list[tuple[str, int, str]]]:
    """Attributes of `self` that a class calls: file, line and innermost function of each call."""
    source = _source_of(kind)
    if source is None:
        return {}
    found: dict[str, list[tuple[str, int, str]]] = {}
    waiting: list[tuple[ast.AST, str]] = [(source.tree, "")]
    while waiting:
        node, function = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        elif isinstance(node, ast.Call) and _is_of_self(node.func) and function:
            place = source.file, source.line_of(node), function
            found.setdefault(node.func.attr, []).append(place)
        waiting.extend((child, function) for child in ast.iter_child_nodes(node))
    return found


@dataclass(frozen=True)
class _Source:
    """A class as it is written: its file, the first line there, and what is in it."""

    file: str
    first: int
    tree: ast.Module

    def line_of(self, node: ast.expr) -> int:
        """The line in the file."""
        return self.first + node.lineno - 1


def _source_of(kind: type) -> _Source | None:
    try:
        lines, first = inspect.getsourcelines(kind)
        file = inspect.getsourcefile(kind) or ""
        return _Source(file, first, ast.parse(dedent("".join(lines))))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None


def _is_of_self(node: ast.expr) -> TypeGuard[ast.Attribute]:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


@lru_cache(maxsize=256)
def assigned_lines(code: CodeType) -> dict[str, list[Assignment]]:
    """The lines of a function (or a module) that assign each name, in order."""
    if code.co_filename.startswith("<"):
        return {}
    try:
        if code.co_name == "<module>":
            text, first = "".join(linecache.getlines(code.co_filename)), 1
        else:
            lines, first = inspect.getsourcelines(code)
            text = dedent("".join(lines))
        tree = ast.parse(text)
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    found: dict[str, set[Assignment]] = {}
    for node in _of_one_scope(tree, code):
        for target in _targets(node):
            for leaf in ast.walk(target):
                # `x[0] = 1` loads x
                if isinstance(leaf, ast.Name) and isinstance(leaf.ctx, ast.Store):
                    found.setdefault(leaf.id, set()).add(Assignment(first + leaf.lineno - 1))
        if isinstance(node, ast.arg):
            argument = Assignment(first + node.lineno - 1, is_argument=True)
            found.setdefault(node.arg, set()).add(argument)
    return {name: sorted(items, key=lambda item: item.line) for name, items in found.items()}


def _of_one_scope(tree: ast.Module, code: CodeType) -> Iterator[ast.AST]:
    """The nodes of the function itself (or the module), not of those that are defined in it."""
    inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    waiting: list[ast.AST] = list(tree.body)
    if code.co_name != "<module>" and tree.body and isinstance(tree.body[0], inner):
        waiting = list(ast.iter_child_nodes(tree.body[0]))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, inner):
            waiting.extend(ast.iter_child_nodes(node))


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign):
        yield from node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For, ast.NamedExpr)):
        yield node.target
    elif isinstance(node, ast.With):
        yield from (item.optional_vars for item in node.items if item.optional_vars is not None)
