"""Rewrites a file so that it tells the values of its expressions: `f(x)` becomes `__shape__(7,
f(x))`.

Exact per expression and per target, which neither the stack traces of FX (lines only) nor a trace
function (names only, and slow) are: 10 ms for a file of 300 lines, about 6 % of the run. Positions
stay, so tracebacks and the columns of instructions are those of the source. Left alone: lambdas,
f-strings, decorators, defaults, annotations, and calls that look at their caller's frame.
"""

from __future__ import annotations
import __future__

import ast
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType

from ...wire.shapes import Span

#: The names under which recorder functions stand in the rewritten module.
NOTE = "__tensorpoint_shape__"

_FRAME_BOUND = {"super", "locals", "vars", "globals", "eval", "exec", "dir", "__import__"}
_DULL = {"isinstance", "hasattr", "print", "len", "range", "getattr", "setattr", "type", "id"}


@dataclass(frozen=True)
class Site:
    """A place of the file whose values are recorded. `owner` is the qualified name around it."""

    span: Span
    name: str
    #: `target`, `expression`, `argument` or `return`.
    kind: str
    owner: str


class Source:
    """A file's text, its tree, and the spans of nodes in characters."""

    def __init__(self, text: str, path: str) -> None:
        self.text, self.path = text, path
        self.lines = text.split("\n")
        self.tree = ast.parse(text, path)

    def span(self, node: ast.expr | ast.stmt | ast.arg) -> Span:
        end_line = node.end_lineno or node.lineno
        return Span(
            node.lineno,
            self.column(node.lineno, node.col_offset),
            end_line,
            self.column(end_line, node.end_col_offset or 0),
        )

    def column(self, line: int, offset: int) -> int:
        """The column in characters of an offset in bytes."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return offset if text.isascii() else len(text.encode()[:offset].decode(errors="replace"))

    def in_characters(self, span: Span) -> Span:
        """A span whose columns are in bytes, as those of instructions are."""
        first = self.column(span.line, span.col)
        return Span(span.line, first, span.end_line, self.column(span.end_line, span.end_col))

    def segment(self, node: ast.expr) -> str:
        """The text of a node in one line. `ast`'s own splits the whole file each time."""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        if node.end_col_offset is None or last >= len(self.lines):
            return ast.unparse(node)
        lines = [line.encode() for line in self.lines[first : last + 1]]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return " ".join(b" ".join(lines).decode(errors="replace").split())


def _future_flags(tree: ast.Module) -> int:
    """What `from __future__` asks for, which each statement has to be compiled with."""
    flags = 0
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                feature = getattr(__future__, alias.name, None)
                flags |= getattr(feature, "compiler_flag", 0)
    return flags


class Rewriter(ast.NodeTransformer):
    """Fills `sites`; a site's number is its index there."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._owners: list[str] = []
        self._inside = False
        self._flags = _future_flags(source.tree)
        self.sites: list[Site] = []

    def rewrite(self, statement: ast.stmt) -> CodeType:
        """The code of one top-level statement."""
        return self.compiled(ast.Module([self.visit(statement)], []))

    def compiled(self, tree: ast.Module) -> CodeType:
        """The code of a tree whose positions are those of the file."""
        ast.fix_missing_locations(tree)
        return compile(tree, self._source.path, "exec", self._flags, dont_inherit=True)

    def told(self, statements: Sequence[ast.stmt], owners: Sequence[str] = ()) -> list[ast.stmt]:
        """Copies of statements, those of the top level as if they were a function's."""
        outer, self._inside, self._owners = self._inside, True, [*owners]
        found = [item for each in statements for item in self._visited(copy.deepcopy(each))]
        self._inside, self._owners = outer, []
        return found

    # -- places

    def _site(self, node: ast.expr | ast.stmt | ast.arg, name: str, kind: str) -> int:
        owner = ".".join(self._owners)
        self.sites.append(Site(self._source.span(node), name, kind, owner))
        return len(self.sites) - 1

    def _note(self, number: int, value: ast.expr, place: ast.AST) -> ast.expr:
        call = ast.Call(ast.Name(NOTE, ast.Load()), [ast.Constant(number), value], [])
        for node in (call, call.func, call.args[0]):
            ast.copy_location(node, place)
        return call

    def _noted(self, original: ast.expr, name: str, kind: str) -> ast.expr:
        """`original`, which has been visited, with its value told."""
        return self._note(self._site(original, name, kind), original, original)

    def _bound(self, target: ast.expr, value: ast.expr) -> ast.expr:
        """`value` with what it binds told, where that is one name or attribute."""
        if not isinstance(target, (ast.Name, ast.Attribute)):
            return value
        return self._note(self._site(target, ast.unparse(target), "target"), value, value)

    def _say(self, node: ast.expr | ast.arg, name: str, kind: str) -> list[ast.stmt]:
        """A statement that tells the value of the name at `node`."""
        load = ast.copy_location(ast.Name(name, ast.Load()), node)
        call = self._note(self._site(node, name, kind), load, node)
        return [ast.copy_location(ast.Expr(call), node)]

    def _say_target(self, target: ast.expr) -> list[ast.stmt]:
        if isinstance(target, ast.Name):
            return self._say(target, target.id, "target")
        if isinstance(target, (ast.Tuple, ast.List)):
            return [statement for item in target.elts for statement in self._say_target(item)]
        return []

    # -- definitions

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        outer, self._inside = self._inside, True
        self._owners.append(node.name)
        arguments = node.args
        names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        said: list[ast.stmt] = []
        for argument in names:
            if argument.arg not in ("self", "cls"):
                said += self._say(argument, argument.arg, "argument")
        body = [self._visited(statement) for statement in node.body]
        first = 1 if ast.get_docstring(node, clean=False) is not None else 0
        flat = [statement for group in body for statement in group]
        node.body = [*flat[:first], *said, *flat[first:]]
        self._owners.pop()
        self._inside = outer
        return node

    def _visited(self, statement: ast.stmt) -> list[ast.stmt]:
        found = self.visit(statement)
        return found if isinstance(found, list) else [found]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        outer, self._inside = self._inside, False
        self._owners.append(node.name)
        node.body = [item for statement in node.body for item in self._visited(statement)]
        self._owners.pop()
        self._inside = outer
        return node

    # -- statements

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.stmt]:
        if not self._inside:
            return node
        node.value = self.visit(node.value)
        for target in node.targets:
            node.value = self._bound(target, node.value)
        said = [
            item
            for target in node.targets
            if isinstance(target, (ast.Tuple, ast.List))
            for item in self._say_target(target)
        ]
        return [node, *said]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if self._inside and node.value is not None:
            node.value = self._bound(node.target, self.visit(node.value))
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST | list[ast.stmt]:
        if not self._inside:
            return node
        node.value = self.visit(node.value)
        return [node, *self._say_target(node.target)]

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        if self._inside:
            node.value = self._bound(node.target, self.visit(node.value))
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if node.value is not None:
            original = node.value
            number = self._site(original, self._source.segment(original), "return")
            node.value = self._note(number, self._plain(original), original)
        return node

    def _plain(self, node: ast.expr) -> ast.expr:
        """Visited without a site of its own: it has one already, as what is returned."""
        visited = self.visit(node)
        if visited is node or not isinstance(visited, ast.Call):
            return visited
        noted = isinstance(visited.func, ast.Name) and visited.func.id == NOTE
        return visited.args[1] if noted else visited

    def visit_For(self, node: ast.For) -> ast.AST:
        return self._loop(node)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        return self._loop(node)

    def _loop(self, node: ast.For | ast.AsyncFor) -> ast.AST:
        node.iter = self.visit(node.iter)
        said = self._say_target(node.target) if self._inside else []
        node.body = [*said, *[item for each in node.body for item in self._visited(each)]]
        node.orelse = [item for each in node.orelse for item in self._visited(each)]
        return node

    # -- expressions

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        if called in _FRAME_BOUND:
            return node
        name = self._source.segment(node)
        if isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)
        elif not isinstance(node.func, ast.Name):
            node.func = self.visit(node.func)
        node.args = [self.visit(argument) for argument in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return (
            node if called in _DULL or not self._inside else self._noted(node, name, "expression")
        )

    def _operator(self, node: ast.expr) -> ast.AST:
        name = self._source.segment(node) if self._inside else ""
        self.generic_visit(node)
        return self._noted(node, name, "expression") if self._inside else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        return self._operator(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if isinstance(node.op, ast.Not) or isinstance(node.operand, ast.Constant):
            self.generic_visit(node)
            return node
        return self._operator(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        plain = all(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops)
        if plain:
            self.generic_visit(node)
            return node
        return self._operator(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if isinstance(node.ctx, ast.Load):
            return self._operator(node)
        self.generic_visit(node)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_Match(self, node: ast.Match) -> ast.AST:
        node.subject = self.visit(node.subject)
        for case in node.cases:
            case.body = [item for each in case.body for item in self._visited(each)]
        return node
