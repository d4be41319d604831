"""Where a value comes from: the line and layer of a tensor, the definition of a parameter.

Three sources, in this order: the record of operations (precision "op") knows the line; the graph
knows a line in anomaly mode, and else the layer, by the parameters that went into the last
operation; the source knows which lines of this frame assign the name, the nearest one above the
line where it stands. What comes from the source alone says "assigned".
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from textwrap import dedent
from types import CodeType, FrameType
from typing import Any

from . import graph
from .known import Known
from .plain import is_parameter, read


@dataclass(frozen=True)
class Place:
    """A line of the program, and what it is to the value."""

    file: str
    line: int
    text: str


def makers(tensor: Any, known: Known) -> list[Place]:
    """The operation that made it, as far as it is known."""
    recorded = known.made_by(tensor)
    if recorded is not None:
        name, file, line = recorded
        return [Place(file, line, f"{name} at {os.path.basename(file)}:{line}")]
    function = read(tensor, "grad_fn")
    if function is None:
        return []
    place = graph.forward_line(function)
    layer = layer_of(function, known)
    if place is not None:
        where = f"{os.path.basename(place[0])}:{place[1]} in {place[2]}"
        return [Place(place[0], place[1], f"{layer}, at {where}" if layer else where)]
    if layer:
        module = known.owners.owner(graph.parameters_of(function)[0])[0]
        defined = module_definition(module, known)
        if defined is not None:
            return [Place(defined.file, defined.line, f"layer {layer}")]
    return []


def layer_of(function: Any, known: Known) -> str:
    """The path of the layer whose parameters went into an operation; "" where there are none."""
    for parameter in graph.parameters_of(function):
        module, _ = known.owners.owner(parameter)
        if module is not None:
            return known.owners.path(module) or type(module).__name__
    return ""


def definition(tensor: Any, known: Known) -> Place | None:
    """The line that defines a parameter or its layer."""
    if not is_parameter(tensor):
        return None
    module, name = known.owners.owner(tensor)
    if module is None:
        return None
    own = _assigned_in(type(module), name)
    if own is not None:
        return own
    return module_definition(module, known)


def module_definition(module: Any, known: Known) -> Place | None:
    """The line of the program that makes a layer: in the class of the module around it."""
    for holder in reversed(known.owners.ancestors(module)):
        if holder is module:
            continue
        inside = (
            known.owners.path(module)
            .removeprefix(known.owners.path(holder))
            .lstrip(".")
            .split(".")[0]
        )
        found = _assigned_in(type(holder), inside)
        if found is not None:
            return found
    return None


def _assigned_in(kind: type, name: str) -> Place | None:
    """The line of `self.NAME = ...` in a class of the program's; None in torch's own."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] in ("torch", "builtins"):
            return None
        found = _assignments(base).get(name)
        if found is not None:
            file, line = found
            return Place(file, line, f"{os.path.basename(file)}:{line} in {base.__name__}")
    return None


@lru_cache(maxsize=256)
def _assignments(kind: type) -> dict[str, tuple[str, int]]:
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
            if (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
            ):
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


def assigned(frame: FrameType, name: str) -> tuple[str, int] | None:
    """Where in the frame's function `name` was last assigned above the line it stands at."""
    lines = _assigned_lines(frame.f_code).get(name)
    if not lines:
        return None
    above = [line for line in lines if line <= frame.f_lineno]
    file = frame.f_code.co_filename
    return file, (above or lines)[-1]


@lru_cache(maxsize=256)
def _assigned_lines(code: CodeType) -> dict[str, list[int]]:
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
    found: dict[str, list[int]] = {}
    for node in _of_one_scope(tree, code):
        for target in _targets(node):
            for leaf in ast.walk(target):
                if isinstance(leaf, ast.Name):
                    found.setdefault(leaf.id, []).append(first + leaf.lineno - 1)
        if isinstance(node, ast.arg):
            found.setdefault(node.arg, []).append(first + node.lineno - 1)
    return {name: sorted(set(lines)) for name, lines in found.items()}


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
