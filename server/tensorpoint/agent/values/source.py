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
    try:
        lines, first = inspect.getsourcelines(kind)
        file = inspect.getsourcefile(kind)
        tree = ast.parse(dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    found: dict[str, tuple[str, int]] = {}
    for node in ast.walk(tree):
        for target in _targets(node):
            if _is_of_self(target):
                found.setdefault(target.attr, (file or "", first + target.lineno - 1))
        registered = _registered(node)
        if registered is not None:
            found.setdefault(registered, (file or "", first + getattr(node, "lineno", 1) - 1))
    return found


def _registered(node: ast.AST) -> str | None:
    """The name in `self.register_parameter("name", ...)`, and of a buffer or a module."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
        return None
    name = node.args[0]
    makes = ("register_parameter", "register_buffer", "register_module", "add_module")
    if node.func.attr in makes and isinstance(name, ast.Constant) and isinstance(name.value, str):
        return name.value
    return None


@lru_cache(maxsize=256)
def calls(kind: type) -> dict[str, list[tuple[str, int, str]]]:
    """Attributes of `self` that the methods of a class call: file, line and method of each call."""
    try:
        lines, first = inspect.getsourcelines(kind)
        file = inspect.getsourcefile(kind) or ""
        tree = ast.parse(dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    found: dict[str, list[tuple[str, int, str]]] = {}
    for method in ast.walk(tree):
        if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in ast.walk(method):
                if isinstance(node, ast.Call) and _is_of_self(node.func):
                    place = file, first + node.lineno - 1, method.name
                    found.setdefault(node.func.attr, []).append(place)
    return found


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
