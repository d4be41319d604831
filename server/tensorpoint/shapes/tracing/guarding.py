"""Rewrites the statements of a script so that they can be run without doing anything.

Each call asks first whether it may be made: `f(x)` becomes `__guard__(f, 3)(x)`. Each statement
that can't be run is left out, and the names that it binds are unknown from there on. Loops turn as
often as is worth it, and what another turn would change is unknown after them. Python itself runs
all of this: branches, comprehensions and scopes are what they are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from .machines import called_autocast
from .rewriting import NOTE

#: The names of what the rewritten code calls, see `scripts.Script`.
GUARD, FAILED, SPREAD = "__tensorpoint_guard__", "__tensorpoint_failed__", "__tensorpoint_spread__"
LOOP, ITEMS, UNSETTLED = "__tensorpoint_loop__", "__tensorpoint_items__", "__tensorpoint_open__"
SKIP, ENDED, NOTHING = "__tensorpoint_skip__", "__tensorpoint_ended__", "__tensorpoint_unknown__"
#: What `**batch` becomes, and the keyword that stands for those of one that is not known.
SPREAD_KEYS, REST = "__tensorpoint_keys__", "__tensorpoint_rest__"
ENDLESS, TURN = "__tensorpoint_endless__", "__tensorpoint_turn__"
#: In the place of the number of a call: it gives an autocast, whatever is called.
AUTOCAST = -1
_OURS = {NOTE, GUARD, FAILED, SPREAD, LOOP, ITEMS, UNSETTLED, SPREAD_KEYS}
_SIMPLE = (
    ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Delete, ast.Import, ast.ImportFrom,
)  # fmt: skip
#: Ends of the names of methods that change what they are called of.
_CHANGING = (
    "add", "append", "appendleft", "clear", "embeddings", "extend", "insert", "pop", "popleft",
    "remove", "reverse", "setdefault", "sort", "update", "_",
)  # fmt: skip
_REFUSED = (ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def can_be_guarded(node: ast.AST) -> bool:
    """Whether a function has nothing that needs more than a call."""
    return not any(isinstance(each, _REFUSED) for each in ast.walk(node))


def guarded_function(node: ast.FunctionDef, numbers: Iterator[int]) -> ast.Module:
    """The definition, which is changed. Calls and loops have `numbers`."""
    return ast.fix_missing_locations(ast.Module([_function(node, numbers)], []))


def _function(node: ast.FunctionDef, numbers: Iterator[int]) -> ast.FunctionDef:
    """Without what is evaluated where it is defined, but for the defaults."""
    node.decorator_list, node.returns = [], None
    given = node.args
    every = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    names: set[str] = set()
    for each in every:
        if each is not None:
            each.annotation = None
            names.add(each.arg)
    guard = _Guard(names | set(_stored(node.body)), numbers)
    given.defaults = [guard.visit(each) for each in given.defaults]
    given.kw_defaults = [each and guard.visit(each) for each in given.kw_defaults]
    node.body = guard.statements(node.body)
    return node


def guarded_script(statements: Sequence[ast.stmt], numbers: Iterator[int]) -> ast.Module:
    """The statements of a file, which are changed."""
    guard = _Guard(set(_stored(statements)), numbers)
    return ast.fix_missing_locations(ast.Module(guard.statements(statements), []))


class _Guard(ast.NodeTransformer):
    """Of one scope; `local` are the names that it binds."""

    def __init__(self, local: set[str], numbers: Iterator[int]) -> None:
        self._local, self._numbers = local, numbers

    # -- statements

    def statements(self, body: Sequence[ast.stmt], trying: bool = False) -> list[ast.stmt]:
        return [new for each in body for new in self._statement(each, trying)]

    def _statement(self, node: ast.stmt, trying: bool) -> list[ast.stmt]:
        names = self._changed(node)
        if isinstance(node, ast.Return):
            node.value = self.visit(node.value) if node.value else None
            unknown = ast.Return(self._failed(node))
            return [self._caught(node, [node], [unknown], trying)]
        if isinstance(node, (ast.Raise, ast.Assert)) and not trying:
            return self._ending(node)
        if isinstance(node, ast.ClassDef):
            return [self._assigned([node.name], ast.Name(NOTHING, ast.Load()), node)]
        if isinstance(node, _SIMPLE):
            return [self._lost(node, [self._simple(node)], names, trying)]
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            return self._loop(node, names, trying)
        if isinstance(node, ast.Try):
            return [self._try(node)]
        if isinstance(node, (ast.If, ast.With, ast.Match)):
            return [self._lost(node, [self._compound(node, trying)], names, trying)]
        return [self.visit(node)]

    def _simple(self, node: ast.stmt) -> ast.stmt:
        node = self.visit(node)
        if isinstance(node, ast.Assign):
            pattern = next((p for p in map(_pattern, node.targets) if p != "None"), None)
            if pattern is not None:
                node.value = self._call(SPREAD, [node.value, _expression(pattern)], node)
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.copy_location(ast.Constant(None), node)
        return node

    def _compound(self, node: ast.If | ast.With | ast.Match, trying: bool) -> ast.stmt:
        if isinstance(node, ast.If):
            node.test = self.visit(node.test)
            node.body = self.statements(node.body, trying)
            node.orelse = self.statements(node.orelse, trying)
        elif isinstance(node, ast.With):
            for item in node.items:
                item.context_expr = self.visit(item.context_expr)
            node.body = self.statements(node.body, trying)
        else:
            node.subject = self.visit(node.subject)
            for case in node.cases:
                case.guard = self.visit(case.guard) if case.guard else None
                case.body = self.statements(case.body, trying)
        return node

    def _try(self, node: ast.Try) -> ast.stmt:
        node.body = self.statements(node.body, trying=True)
        for handler in node.handlers:
            handler.body = self.statements(handler.body)
        node.orelse = self.statements(node.orelse)
        node.finalbody = self.statements(node.finalbody)
        return node

    def _ending(self, node: ast.Raise | ast.Assert) -> list[ast.stmt]:
        """What ends a program ends the script."""
        end = ast.copy_location(ast.Raise(ast.Name(ENDED, ast.Load())), node)
        if isinstance(node, ast.Raise):
            return [end]
        test = ast.UnaryOp(ast.Not(), self.visit(node.test))
        checked = ast.copy_location(ast.If(test, [end], []), node)
        return [self._lost(node, [checked], [], trying=False)]

    def _loop(
        self, node: ast.For | ast.AsyncFor | ast.While, names: list[str], trying: bool
    ) -> list[ast.stmt]:
        key = ast.Constant(next(self._numbers))
        mentioned = sorted(
            {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} & self._local
        )
        about = ast.Tuple([ast.Constant(name) for name in mentioned], ast.Load())
        body = self.statements(node.body, trying)
        if isinstance(node, ast.While):
            test = ast.UnaryOp(ast.Not(), self.visit(node.test))
            body.insert(0, ast.copy_location(ast.If(test, [ast.Break()], []), node))
            target: ast.expr = ast.Name(TURN, ast.Store())
            pattern, items = "None", ast.Name(ENDLESS, ast.Load())
        else:
            target, pattern, items = node.target, _pattern(node.target), self.visit(node.iter)
        over = self._call(LOOP, [items, key, _expression(pattern), about], node)
        loop = ast.copy_location(
            ast.For(target, over, body, self.statements(node.orelse, trying)), node
        )
        after = [
            ast.copy_location(
                ast.If(
                    self._call(UNSETTLED, [key, ast.Constant(name)], node),
                    [self._assigned([name], ast.Name(NOTHING, ast.Load()), node)],
                    [],
                ),
                node,
            )
            for name in mentioned
        ]
        return [self._lost(node, [loop], names, trying), *after]

    def _lost(
        self, node: ast.stmt, body: list[ast.stmt], names: list[str], trying: bool
    ) -> ast.stmt:
        """Where it can't be run, the names are unknown."""
        failed = self._failed(node)
        handled = (
            self._assigned(names, failed, node)
            if names
            else ast.copy_location(ast.Expr(failed), node)
        )
        return self._caught(node, body, [handled], trying)

    def _caught(
        self, node: ast.stmt, body: list[ast.stmt], handled: list[ast.stmt], trying: bool
    ) -> ast.stmt:
        """What the program catches itself is left to it."""
        kind = ast.Name(SKIP if trying else "BaseException", ast.Load())
        handler = ast.ExceptHandler(kind, None, handled)
        return ast.copy_location(ast.Try(body, [handler], [], []), node)

    def _failed(self, node: ast.stmt) -> ast.expr:
        return self._call(FAILED, [ast.Constant(node.lineno)], node)

    def _assigned(self, names: Sequence[str], value: ast.expr, place: ast.stmt) -> ast.stmt:
        targets: list[ast.expr] = [ast.Name(name, ast.Store()) for name in names]
        return ast.copy_location(ast.Assign(targets, value), place)

    def _changed(self, node: ast.stmt) -> list[str]:
        """The names that a statement binds or whose values it changes."""
        found = dict.fromkeys(_stored([node]))
        for each in ast.walk(node):
            changed: ast.expr | None = None
            if isinstance(each, (ast.Attribute, ast.Subscript)) and isinstance(each.ctx, ast.Store):
                changed = each.value
            elif isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
                called = _method(each.value)
                if called is not None and (each is node or called.attr.endswith(_CHANGING)):
                    changed = called.value
            while isinstance(changed, (ast.Attribute, ast.Subscript)):
                changed = changed.value
            if isinstance(changed, ast.Name) and changed.id in self._local:
                found[changed.id] = None
        return list(found)

    # -- expressions

    def _call(self, name: str, arguments: list[ast.expr], place: ast.AST) -> ast.expr:
        call = ast.Call(ast.Name(name, ast.Load()), arguments, [])
        return ast.copy_location(call, place)  # pyright: ignore[reportArgumentType]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        casts = called_autocast(node) is not None
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in (*_OURS, "super"):
            return node
        number = ast.Constant(AUTOCAST if casts else next(self._numbers))
        node.func = self._call(GUARD, [node.func, number], node.func)
        for keyword in node.keywords:
            if keyword.arg is None:
                keyword.value = self._call(SPREAD_KEYS, [keyword.value], keyword.value)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.iter = self._call(ITEMS, [node.iter], node.iter)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return ast.copy_location(ast.Pass(), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return _function(node, self._numbers)


def _method(call: ast.Call) -> ast.Attribute | None:
    """The method that is called in a statement that is nothing but that."""
    if isinstance(call.func, ast.Name) and call.func.id == NOTE:  # with its value told
        inside = call.args[1]
        return _method(inside) if isinstance(inside, ast.Call) else None
    return call.func if isinstance(call.func, ast.Attribute) else None


def _stored(body: Sequence[ast.AST]) -> Iterator[str]:
    """The names that are bound in a scope, not in those within."""
    for node in body:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((each.asname or each.name).split(".")[0] for each in node.names)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        if not isinstance(node, (*_INNER, *_COMPREHENSIONS)):
            yield from _stored([*ast.iter_child_nodes(node)])


def _pattern(target: ast.expr) -> str:
    """How a target unpacks, as an expression: `(None, (None, None))`."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        return "None"
    if any(isinstance(each, ast.Starred) for each in target.elts):
        return "None"
    return f"({''.join(_pattern(each) + ',' for each in target.elts)})"


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
