"""Which node of the source an instruction is.

From Python 3.11 on the code object knows its columns; on 3.10 the calls of the line are counted, in
the order in which they are made.
"""

from __future__ import annotations

import ast
import dis
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from types import CodeType
from typing import Any, Literal

Kind = Literal["call", "operator", "subscript", "attribute", "truth", "iteration"]
Span = tuple[int, int, int, int]

#: The nodes that each kind of instruction may be of.
NODES: dict[Kind, tuple[type[ast.AST], ...]] = {
    "call": (ast.Call,),
    "operator": (ast.BinOp, ast.AugAssign, ast.UnaryOp, ast.Compare),
    "subscript": (ast.Subscript,),
    "attribute": (ast.Attribute,),
    "truth": (ast.expr,),
    "iteration": (ast.expr,),
}


def opname_at(code: CodeType, lasti: int) -> str:
    """The name of the instruction; "" outside of the code."""
    bytecode = code.co_code
    while 0 < lasti < len(bytecode) and bytecode[lasti] == 0 and dis.opname[0] == "CACHE":
        lasti -= 2
    return dis.opname[bytecode[lasti]] if 0 <= lasti < len(bytecode) else ""


def kind_of(opname: str) -> Kind | None:
    """What the instruction does to operands; None for what has none."""
    if opname in ("CALL_INTRINSIC_1", "CALL_INTRINSIC_2"):
        return None
    if opname == "PRECALL" or opname.startswith("CALL"):
        return "call"
    if opname in ("BINARY_SUBSCR", "BINARY_SLICE", "STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR"):
        return "subscript"
    if opname == "UNARY_NOT" or opname == "TO_BOOL" or "JUMP_IF_" in opname:
        return "truth"
    if opname.startswith("POP_JUMP_"):
        return "truth"
    if opname in ("COMPARE_OP", "CONTAINS_OP"):
        return "operator"
    if opname.startswith(("BINARY_", "INPLACE_", "UNARY_")):
        return "operator"
    if opname in ("GET_ITER", "FOR_ITER", "UNPACK_SEQUENCE", "UNPACK_EX", "LIST_EXTEND"):
        return "iteration"
    if opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return "attribute"
    return None


def span_at(code: CodeType, lasti: int) -> Span | None:
    """Start and end of the instruction's source; None where the code object doesn't know."""
    if sys.version_info < (3, 11) or lasti < 0:
        return None
    found = next(islice(code.co_positions(), lasti // 2, None), (None, None, None, None))
    line, end_line, column, end_column = found
    if line is None or end_line is None or column is None or end_column is None:
        return None  # python -X no_debug_ranges
    return line, column, end_line, end_column


@lru_cache(maxsize=4)
def parse(source: str) -> ast.Module:
    """The tree of a source text. Raises SyntaxError, ValueError, MemoryError, RecursionError."""
    return ast.parse(source)


def span_of(node: Any) -> Span | None:
    """Start and end of a node; None for what has no place."""
    if not isinstance(node, (ast.expr, ast.stmt, ast.keyword)):
        return None
    end_line, end_column = node.end_lineno, node.end_col_offset
    if end_line is None or end_column is None:
        return None
    return node.lineno, node.col_offset, end_line, end_column


def covering(tree: ast.AST, span: Span) -> list[ast.AST]:
    """The nodes that the span is in, outermost first."""
    path: list[ast.AST] = []
    inside = [tree]
    while inside:
        node = inside.pop(0)
        own = span_of(node)
        if own is not None:
            if not (own[:2] <= span[:2] and own[2:] >= span[2:]):
                continue
            path.append(node)
            inside = []
        # Nodes without a place (arguments, comprehensions) are looked into.
        inside.extend(ast.iter_child_nodes(node))
    return path


def by_line(tree: ast.Module, code: CodeType, lasti: int, lineno: int, kind: Kind) -> list[ast.AST]:
    """For Python 3.10: the node, found by counting; [] if that is ambiguous."""
    if kind in ("truth", "iteration"):
        return []
    body = body_of(tree, code)
    if body is None:
        return []
    candidates = [
        path
        for path in in_order(body)
        if isinstance(path[-1], NODES[kind]) and lineno in _lines_of(path[-1])
    ]
    same: list[int] = []
    line = None
    for instruction in dis.get_instructions(code):
        line = instruction.starts_line or line
        if line == lineno and kind_of(instruction.opname) == kind:
            same.append(instruction.offset)
    if len(candidates) == 1:
        return candidates[0]
    if len(candidates) != len(same) or lasti not in same:
        return []
    return candidates[same.index(lasti)]


def _lines_of(node: Any) -> set[int]:
    """The lines that an instruction of the node may have: of a method call that of its name."""
    lines = {node.lineno}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        lines = {node.func.end_lineno or node.lineno}
    return lines


#: What has a code object of its own.
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
INNER = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def body_of(tree: ast.Module, code: CodeType) -> ast.AST | None:
    """The function (or the whole module) in the tree that a code object was made of."""
    if code.co_name == "<module>":
        return tree
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.name == code.co_name
        and min([node.lineno, *(item.lineno for item in node.decorator_list)])
        == code.co_firstlineno
    ]
    return found[0] if len(found) == 1 else None


def in_order(root: ast.AST) -> Iterator[list[ast.AST]]:
    """Paths to the nodes of one code object, in the order in which they are evaluated."""

    def visit(node: ast.AST, path: list[ast.AST]) -> Iterator[list[ast.AST]]:
        here = [*path, node]
        children: Iterable[ast.AST] = ast.iter_child_nodes(node)
        if isinstance(node, ast.Assign):
            children = (node.value, *node.targets)
        for child in children:
            if not isinstance(child, (*SCOPES, *INNER)):
                yield from visit(child, here)
        yield here

    return visit(root, [])
