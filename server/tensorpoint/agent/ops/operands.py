"""Which expressions of the source an instruction works on, and what they are bound to.

    x / y             x and y
    torch.log(a.b)    a.b
    self.fc(x)        x
    h.view(n, -1)     h and n

The instruction is that of a traceback (`tb_lasti`) or of a frame (`f_lasti`). From Python 3.11 on
the code object knows its columns, so it is exactly this call and not another one of the line; on
3.10 the calls of the line are counted, in the order in which they are made.

Nothing of the program runs: no call, no property, no `__getattr__`. What only those would tell is
`UNKNOWN`. So are expressions that are calls themselves, whose results are on no name.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from .peek import UNKNOWN, attribute, element_of, is_module, is_tensor
from .syntax import (
    INNER,
    NODES,
    SCOPES,
    Kind,
    Span,
    by_line,
    covering,
    kind_of,
    opname_at,
    parse,
    span_at,
    span_of,
)

_LONGEST_TEXT = 80
_LONGEST_SEQUENCE = 8
_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.MatMult: "@",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.BitAnd: "&",
    ast.USub: "-",
    ast.UAdd: "+",
    ast.Invert: "~",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
}
_LITERAL = (
    *(ast.Constant, ast.Tuple, ast.List, ast.expr_context),
    *(ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator),
)


@dataclass(frozen=True)
class Operand:
    """One expression that the instruction works on.

    `position` is its place among the positional arguments, `keyword` the name it is passed by;
    an element of a list that is passed has that list's. The object of a method has neither.
    """

    expression: str
    value: Any
    position: int | None = None
    keyword: str | None = None
    is_literal: bool = False


@dataclass(frozen=True)
class Site:
    """The call or operator at an instruction.

    `name` is the operator ("/", "+=", "[]"), or what is called as the source has it ("torch.log",
    "self.fc"). `callee` is what that is bound to. `receiver` is the object of a method. `tensors`
    are all tensors on names in the text, also inside of operands (x of `self.fc(x) + 1`), `modules`
    the modules.
    """

    kind: Kind
    name: str
    text: str
    callee: Any = UNKNOWN
    receiver: Operand | None = None
    arguments: tuple[Operand, ...] = ()
    tensors: tuple[tuple[str, Any], ...] = ()
    modules: tuple[tuple[str, Any], ...] = ()
    functions: tuple[Any, ...] = ()

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The receiver and the arguments, literals left out."""
        everything = (self.receiver, *self.arguments)
        return tuple(item for item in everything if item is not None and not item.is_literal)


def operands(
    code: CodeType,
    lasti: int,
    lineno: int,
    f_locals: Mapping[str, Any],
    f_globals: Mapping[str, Any],
) -> list[tuple[str, Any]]:
    """The operands at an instruction of `code` and their values, in the order of the source.

    Literals are left out; a list that is written out (`torch.cat([a, b])`) counts as its elements.
    Empty where there is no source, or nothing with operands.
    """
    found = site(code, lasti, lineno, f_locals, f_globals)
    return [] if found is None else [(item.expression, item.value) for item in found.operands]


def site(
    code: CodeType,
    lasti: int,
    lineno: int,
    f_locals: Mapping[str, Any],
    f_globals: Mapping[str, Any],
) -> Site | None:
    """What is called or computed at an instruction of `code`; None where that cannot be told."""
    kind = kind_of(opname_at(code, lasti))
    lines = linecache.getlines(code.co_filename, dict(f_globals)) if kind else []
    if kind is None or not lines:
        return None
    try:
        tree = parse("".join(lines))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    span = span_at(code, lasti)
    path = covering(tree, span) if span else by_line(tree, code, lasti, lineno, kind)
    if not path:
        return None
    return _Reader(lines, f_locals, f_globals).read(kind, path, span)


def is_raise(code: CodeType, lasti: int) -> bool:
    """Whether the instruction is a `raise` (or a failing `assert`) of the source."""
    return opname_at(code, lasti) in ("RAISE_VARARGS", "RERAISE")


def argument_in(code: CodeType, f_locals: Mapping[str, Any], operand: Operand) -> Any:
    """What an operand was passed as, read from the frame of the Python function that was called.

    For operands that are calls themselves: their results are the parameters there.
    """
    names = code.co_varnames[: code.co_argcount]
    if names[:1] in (("self",), ("cls",)):
        if operand.position is None and operand.keyword is None:
            return f_locals.get("self", UNKNOWN)
        names = names[1:]
    if operand.keyword is not None:
        known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if operand.keyword in known:
            return f_locals.get(operand.keyword, UNKNOWN)
        rest = f_locals.get(_rest_name(code, inspect.CO_VARKEYWORDS))
        return rest.get(operand.keyword, UNKNOWN) if isinstance(rest, dict) else UNKNOWN
    if operand.position is None:
        return UNKNOWN
    if operand.position < len(names):
        return f_locals.get(names[operand.position], UNKNOWN)
    rest = f_locals.get(_rest_name(code, inspect.CO_VARARGS))
    position = operand.position - len(names)
    return rest[position] if isinstance(rest, tuple) and position < len(rest) else UNKNOWN


def _rest_name(code: CodeType, flag: int) -> str:
    """The name of `*args` or `**kwargs` in a function; "" if it has none."""
    if not code.co_flags & flag:
        return ""
    place = code.co_argcount + code.co_kwonlyargcount
    if flag == inspect.CO_VARKEYWORDS and code.co_flags & inspect.CO_VARARGS:
        place += 1
    return code.co_varnames[place]


class _Reader:
    """Reads expressions of one frame, without running anything of the program."""

    def __init__(
        self, lines: list[str], f_locals: Mapping[str, Any], f_globals: Mapping[str, Any]
    ) -> None:
        self._lines = lines
        self._locals = f_locals
        self._globals = f_globals

    def read(self, kind: Kind, path: list[ast.AST], span: Span | None) -> Site | None:
        """The site at the innermost node of `path` that is of the kind."""
        nodes: list[Any] = [node for node in path if isinstance(node, NODES[kind])]
        whole: Any = path[-1]
        # Some versions give the whole statement as the place of its condition.
        if span == span_of(whole) and isinstance(whole, (ast.If, ast.While, ast.For)):
            nodes = [whole.iter if isinstance(whole, ast.For) else whole.test]
            path = [whole, *nodes]
        elif span is not None:
            exact = [node for node in nodes if span_of(node) == span]
            # The instruction of a method call begins at the method's name.
            ending = [node for node in nodes if (span_of(node) or (0,) * 4)[2:] == span[2:]]
            nodes = exact or (ending if kind in ("call", "attribute") else [])
        if not nodes:
            return None
        node = nodes[-1]
        parent = path[path.index(node) - 1] if path.index(node) else None
        found = self._site(kind, node, parent)
        if found is None:
            return None
        named = dict(self._named(node))
        called = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
        return replace(
            found,
            tensors=tuple((text, value) for text, value in named.items() if is_tensor(value)),
            modules=tuple((text, value) for text, value in named.items() if is_module(value)),
            functions=tuple(self._value(function) for function in called),
        )

    def _named(self, node: ast.AST) -> Iterator[tuple[str, Any]]:
        """The names, attributes and elements in an expression that are tensors or modules."""
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            value = self._value(node)
            if is_tensor(value) or is_module(value):
                yield self._text(node), value
                return
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (*SCOPES, *INNER)):
                yield from self._named(child)

    def _site(self, kind: Kind, node: Any, parent: ast.AST | None) -> Site | None:
        if kind == "call":
            return self._call(node)
        if kind == "subscript":
            return self._subscript(node, parent)
        if kind == "operator":
            return self._operator(node)
        if kind == "attribute":
            arguments = (self._operand(node.value),)
            return Site(kind, f".{node.attr}", self._text(node), arguments=arguments)
        if kind == "truth":
            return self._truth(node)
        if isinstance(parent, ast.Assign) and node in parent.targets:  # a, b = x
            node = parent.value
        return Site(kind, "iter", self._text(node), arguments=tuple(self._leaves(node)))

    def _call(self, node: ast.Call) -> Site:
        function, receiver = node.func, None
        callee = self._value(function)
        if isinstance(function, ast.Attribute):
            bound = self._value(function.value)
            if is_tensor(bound) or (bound is UNKNOWN and _is_computed(function.value)):
                receiver = Operand(self._text(function.value), bound)
        return Site(
            "call",
            self._text(function),
            self._text(node),
            callee,
            receiver,
            tuple(self._arguments(node)),
        )

    def _arguments(self, node: ast.Call) -> Iterator[Operand]:
        position: int | None = 0
        for item in node.args:
            if isinstance(item, ast.Starred):
                text, value = self._text(item.value), self._value(item.value)
                if type(value) in (tuple, list) and position is not None:
                    for index, element in enumerate(value):
                        yield Operand(f"{text}[{index}]", element, position)
                        position += 1
                else:
                    yield Operand(f"*{text}", UNKNOWN)
                    position = None  # the rest can't be told apart any more
                continue
            yield from self._spread(item, position, None)
            position = None if position is None else position + 1
        for keyword in node.keywords:
            if keyword.arg is not None:
                yield from self._spread(keyword.value, None, keyword.arg)
                continue
            text, value = self._text(keyword.value), self._value(keyword.value)
            if type(value) is dict:
                for name, element in value.items():
                    if isinstance(name, str):
                        yield Operand(f"{text}[{name!r}]", element, None, name)
            else:
                yield Operand(f"**{text}", UNKNOWN)

    def _spread(
        self, node: ast.expr, position: int | None, keyword: str | None
    ) -> Iterator[Operand]:
        """An argument; one that is a list written out, by its elements."""
        elements = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
        for element in elements:
            yield self._operand(element, position, keyword)

    def _operand(
        self, node: ast.expr, position: int | None = None, keyword: str | None = None
    ) -> Operand:
        literal = all(isinstance(part, _LITERAL) for part in ast.walk(node))
        return Operand(self._text(node), self._value(node), position, keyword, literal)

    def _operator(self, node: Any) -> Site | None:
        if isinstance(node, ast.BinOp):
            name, parts = _OPERATORS.get(type(node.op), "?"), [node.left, node.right]
        elif isinstance(node, ast.AugAssign):
            name, parts = _OPERATORS.get(type(node.op), "?") + "=", [node.target, node.value]
        elif isinstance(node, ast.UnaryOp):
            if isinstance(node.op, ast.Not):
                return self._truth(node)
            name, parts = _OPERATORS.get(type(node.op), "?"), [node.operand]
        else:
            name = _OPERATORS.get(type(node.ops[0]), "?")
            parts = [node.left, *node.comparators]
        return Site(
            "operator",
            name,
            self._text(node),
            arguments=tuple(self._operand(part, index) for index, part in enumerate(parts)),
        )

    def _subscript(self, node: ast.Subscript, parent: ast.AST | None) -> Site:
        parts = [self._operand(node.value)]
        # The tensors and numbers in it: x[:, i, mask].
        for part in _parts_of_index(node.slice):
            operand = self._operand(part)
            parts.append(operand)
        text, name = self._text(node), "[]"
        if isinstance(parent, ast.Assign) and node in parent.targets:
            parts.append(self._operand(parent.value))
            text, name = self._text(parent), "[]="
        return Site("subscript", name, text, arguments=tuple(parts))

    def _truth(self, node: ast.expr) -> Site:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            node = node.operand
        return Site(
            "truth", "bool", f"bool({self._text(node)})", arguments=tuple(self._leaves(node))
        )

    def _leaves(self, node: ast.expr) -> Iterator[Operand]:
        """An expression whose value is on no name, by what it is made of."""
        if isinstance(node, ast.Compare):
            for part in (node.left, *node.comparators):
                yield self._operand(part)
        elif isinstance(node, ast.BinOp):
            yield self._operand(node.left)
            yield self._operand(node.right)
        else:
            yield self._operand(node)

    def _text(self, node: Any) -> str:
        span = span_of(node)
        if span is None:
            return ast.unparse(node)
        first, column, last, end_column = span
        lines = [line.encode() for line in self._lines[first - 1 : last]]
        if not lines:
            return ""
        lines[-1] = lines[-1][:end_column]
        lines[0] = lines[0][column:]
        text = " ".join(b" ".join(lines).decode(errors="replace").split())
        return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."

    def _value(self, node: Any) -> Any:
        try:
            return self._evaluate(node)
        except Exception:  # an object of the program's is odd; that is no reason to say nothing
            return UNKNOWN

    def _evaluate(self, node: Any) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            for scope in (self._locals, self._globals, vars(builtins)):
                if node.id in scope:
                    return scope[node.id]
            return UNKNOWN
        if isinstance(node, ast.Attribute):
            owner = self._evaluate(node.value)
            return UNKNOWN if owner is UNKNOWN else attribute(owner, node.attr)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            number = self._evaluate(node.operand)
            return -number if type(number) in (int, float) else UNKNOWN
        if isinstance(node, ast.Subscript):
            owner, key = self._evaluate(node.value), self._evaluate(node.slice)
            return UNKNOWN if owner is UNKNOWN or key is UNKNOWN else element_of(owner, key)
        if isinstance(node, (ast.Tuple, ast.List)):
            values = [self._evaluate(part) for part in node.elts]
            return UNKNOWN if any(value is UNKNOWN for value in values) else tuple(values)
        return UNKNOWN


def _is_computed(node: ast.expr) -> bool:
    """Whether an expression computes something: its value is on no name."""
    return any(
        isinstance(part, (ast.Call, ast.BinOp, ast.UnaryOp, ast.Subscript))
        for part in ast.walk(node)
    )


def _parts_of_index(node: ast.expr) -> Iterator[ast.expr]:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    for part in parts:
        if isinstance(part, ast.Slice):
            yield from (bound for bound in (part.lower, part.upper, part.step) if bound is not None)
        else:
            yield part


def tensors_in(expression: str, value: Any) -> list[tuple[str, Any]]:
    """The tensors of an operand with their names: of a list of tensors, the first few."""
    if is_tensor(value):
        return [(expression, value)]
    if type(value) in (list, tuple):
        return [
            (f"{expression}[{index}]", element)
            for index, element in enumerate(value[:_LONGEST_SEQUENCE])
            if is_tensor(element)
        ]
    return []
