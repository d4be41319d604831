"""The lines that have to do with a fault: where its operands were assigned, its layers made."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...wire.shapes import Related
from .errors import Fault
from .rewriting import Source


def related_to(fault: Fault, source: Source) -> Iterator[Related]:
    """One place for each operand that has one."""
    function = _function(source, fault)
    for name, shape in fault.operands:
        attribute = name.removesuffix(".weight")
        if attribute.startswith("self."):
            node = _last_assignment(_class(source, fault), attribute, None)
        else:
            node = _last_assignment(function, name, fault.span.line)
        if node is not None:
            span = source.span(node)
            yield Related(source.path, span, f"{name} is {shape}: made here")


def _last_assignment(scope: ast.AST | None, name: str, before: int | None) -> ast.stmt | None:
    found: ast.stmt | None = None
    for node in ast.walk(scope) if scope is not None else ():
        if isinstance(node, ast.Assign) and (before is None or node.lineno < before):
            targets = [t for target in node.targets for t in ast.walk(target)]
            texts = {ast.unparse(t) for t in targets if isinstance(t, (ast.Name, ast.Attribute))}
            if name in texts and (found is None or node.lineno > found.lineno):
                found = node
    return found


def _function(source: Source, fault: Fault) -> ast.AST | None:
    return _innermost(source, fault, (ast.FunctionDef, ast.AsyncFunctionDef))


def _class(source: Source, fault: Fault) -> ast.AST | None:
    return _innermost(source, fault, (ast.ClassDef,))


def _innermost(source: Source, fault: Fault, kinds: tuple[type, ...]) -> ast.AST | None:
    found = None
    for node in ast.walk(source.tree):
        if isinstance(node, kinds):
            line, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
            if line <= fault.span.line <= end and (found is None or line > found[0]):
                found = (line, node)
    return found[1] if found else None
