"""What a file of Python defines: its functions with their code, and the lines around them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
#: A qualified name, and how many of that name were defined before it.
Name = tuple[str, int]
#: Where a code object begins: what a function that lives is known by in its source.
Place = tuple[str, int]


@dataclass(frozen=True)
class Definition:
    """A function in the source."""

    name: str
    #: None if several begin at its place (lambdas of one line).
    code: CodeType | None
    node: _Function
    #: The qualified name of the class whose body it is in, or "".
    owner: str
    #: Whether it is made when the module is loaded, and not in a function.
    is_outermost: bool

    @property
    def text(self) -> str:
        """What it is, wherever it stands."""
        return ast.dump(self.node)

    @property
    def decorators(self) -> list[str]:
        return [ast.dump(item) for item in getattr(self.node, "decorator_list", [])]

    @property
    def parameters(self) -> tuple[list[str], list[ast.expr | None]]:
        """Their names and defaults, as both are bound to each other."""
        given = self.node.args
        by_place = [*given.posonlyargs, *given.args]
        missing: list[ast.expr | None] = [None] * (len(by_place) - len(given.defaults))
        names = [each.arg for each in (*by_place, *given.kwonlyargs)]
        return names, [*missing, *given.defaults, *given.kw_defaults]


@dataclass
class Source:
    """A file at one time."""

    functions: dict[Name, Definition] = field(default_factory=dict[Name, Definition])
    places: dict[Place, Name] = field(default_factory=dict[Place, Name])
    #: By class ("" for the module): the statements that aren't functions or classes, as text.
    statements: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    #: How many lines it has.
    length: int = 0
    #: Of the functions those that live but are not in the file any more.
    gone: set[Name] = field(default_factory=set[Name])


def read(text: str, file: str) -> Source:
    """What `text` defines. Raises SyntaxError, and ValueError for null bytes."""
    tree = ast.parse(text, file)
    codes: dict[Place, list[CodeType]] = {}
    for code in _codes(compile(tree, file, "exec", dont_inherit=True)):
        codes.setdefault((code.co_name, code.co_firstlineno), []).append(code)
    found, seen = Source(length=text.count("\n")), Counter[str]()
    for name, owner, is_outermost, node in _functions(tree, "", "", True):
        place = _place(node)
        here = codes.get(place, [])
        key = name, seen[name]
        seen[name] += 1
        code = here[0] if len(here) == 1 else None
        found.functions[key] = Definition(name, code, node, owner, is_outermost)
        found.places[place] = key
    _note_statements(tree, "", found.statements)
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    for item in code.co_consts:
        if isinstance(item, CodeType):
            yield item
            yield from _codes(item)


def _functions(
    node: ast.AST, path: str, owner: str, is_outermost: bool
) -> Iterator[tuple[str, str, bool, _Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            name = path + getattr(child, "name", "<lambda>")
            yield name, owner, is_outermost, child
            yield from _functions(child, f"{name}.<locals>.", "", False)
        elif isinstance(child, ast.ClassDef):
            name = path + child.name
            yield from _functions(child, f"{name}.", name, is_outermost)
        else:
            yield from _functions(child, path, owner, is_outermost)


def _place(node: _Function) -> Place:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    line = decorators[0].lineno if decorators else node.lineno
    return getattr(node, "name", "<lambda>"), line


def _note_statements(
    body: ast.Module | ast.ClassDef, name: str, into: dict[str, list[str]]
) -> None:
    into[name] = []
    for number, statement in enumerate(body.body):
        if isinstance(statement, ast.ClassDef):
            inner = f"{name}.{statement.name}" if name else statement.name
            head = [*statement.decorator_list, *statement.bases, *statement.keywords]
            into[name].append(f"class {statement.name}({', '.join(map(ast.unparse, head))})")
            _note_statements(statement, inner, into)
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        elif number == 0 and isinstance(statement, ast.Expr) and _is_text(statement.value):
            continue  # the docstring
        else:
            into[name].append(ast.unparse(statement))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
