"""What an expression of the file is worth where it stands, without running what is around it.

To know what `net(images)` passes, `images` is looked up as a reader would: the assignment before
the line, the first item of what a loop goes over (of a loader, a batch of its data set's first
items), what a call in the file passes for a parameter. Statements never run, only the expressions
that are asked for, on the meta device and for some seconds at most; what needs more is not known.
"""

from __future__ import annotations

import ast
import builtins
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader

from .modes import Assumptions, TooLong, without_data
from .source import FileModule
from .unknown import NoNumbers, Skip

#: For one expression: a loop that trains may be among those that it needs.
_SECONDS = 3.0
_DEEPEST = 24
#: Items of a data set that are put into a batch: no size that a layer would have.
_BATCH = 5
_WRAPPERS = {"tqdm", "trange", "list", "tuple", "iter", "islice", "cycle", "track", "prefetch"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Unknown(Exception):
    """An expression has no value that could be found."""


@dataclass(frozen=True)
class _Binding:
    """How a name gets its value: from `value`, by unpacking along `path`."""

    line: int
    value: ast.expr
    path: tuple[int, ...]
    #: The name is each item of the value in turn.
    loops: bool = False


@dataclass
class _Scope:
    """A function, or the file as a whole (`function` is None)."""

    function: ast.FunctionDef | ast.AsyncFunctionDef | None
    parent: _Scope | None
    bindings: dict[str, list[_Binding]] = field(default_factory=dict[str, list[_Binding]])

    @property
    def parameters(self) -> dict[str, ast.expr | None]:
        """With their defaults."""
        if self.function is None:
            return {}
        given = self.function.args
        positional = [*given.posonlyargs, *given.args]
        found: dict[str, ast.expr | None] = dict.fromkeys((a.arg for a in positional), None)
        found.update(zip([a.arg for a in positional][::-1], given.defaults[::-1]))
        found.update(zip((a.arg for a in given.kwonlyargs), given.kw_defaults))
        return found


class Values:
    """The values of one file's expressions."""

    def __init__(self, file: FileModule) -> None:
        self._file = file
        self._module = _Scope(None, None)
        self._scopes: dict[int, _Scope] = {}
        self._known: dict[int, Any] = {}
        self._open: set[tuple[int, str]] = set()
        self._end = 0.0
        #: All calls of the file, in order.
        self.calls: list[ast.Call] = []
        self._collect(file.source.tree.body, self._module)
        self.calls.sort(key=lambda call: (call.lineno, call.col_offset))

    def of(self, node: ast.expr) -> Any:
        """The value of an expression of the file. Raises `Unknown`."""
        self._end = time.monotonic() + _SECONDS
        scope = self._scopes.get(id(node), self._module)
        assumed = Assumptions(self._file.source.path, deadline=self._end)
        with without_data(assumed), NoNumbers():
            return self._value(node, scope, node.lineno)

    def near(self, node: ast.expr, call: ast.Call) -> Any:
        """The value of an expression where a call stands. Raises `Unknown`."""
        self._scopes.setdefault(id(node), self._scopes.get(id(call), self._module))
        return self.of(node)

    def arguments(self, call: ast.Call) -> tuple[list[Any], dict[str, Any]]:
        """What a call of the file passes. Raises `Unknown`."""
        positional: list[Any] = []
        for argument in call.args:
            if isinstance(argument, ast.Starred):
                positional += list(self.near(argument.value, call))
            else:
                positional.append(self.near(argument, call))
        keywords: dict[str, Any] = {}
        for keyword in call.keywords:
            value = self.near(keyword.value, call)
            keywords.update({keyword.arg: value} if keyword.arg else value)
        return positional, keywords

    # -- scopes

    def _collect(self, body: Sequence[ast.AST], scope: _Scope) -> None:
        for node in body:
            if isinstance(node, _FUNCTIONS):
                self._collect(node.body, _Scope(node, scope))
                continue
            if isinstance(node, ast.Call):
                self.calls.append(node)
                self._scopes[id(node)] = scope
                self._scopes[id(node.func)] = scope
            for name, binding in _bindings(node):
                scope.bindings.setdefault(name, []).append(binding)
            self._collect([*ast.iter_child_nodes(node)], scope)

    # -- evaluation

    def _value(self, node: ast.expr, scope: _Scope, line: int) -> Any:
        if len(self._open) > _DEEPEST or time.monotonic() > self._end:
            raise Unknown("it leads too far")
        first = _first_of(node)
        if first is not None:
            return self._first(first, scope, line)
        names: dict[str, Any] = {}
        for name in _free_names(node):
            found, value = self._look_up(name, scope, line)
            if found:
                names[name] = value
        code = compile(ast.Expression(node), self._file.source.path, "eval")
        try:
            return eval(code, {**self._file.namespace, **names})
        except (Exception, SystemExit, TooLong, Skip) as error:
            raise Unknown(f"{type(error).__name__}: {error}") from None

    def _look_up(self, name: str, scope: _Scope | None, line: int) -> tuple[bool, Any]:
        """Whether the name is bound here, in the scopes around, and its value."""
        while scope is not None:
            if scope.function is None and name in self._file.namespace:
                return False, None
            bindings = scope.bindings.get(name)
            if bindings and scope.function is None and _makes_parser(bindings[-1].value):
                self._file.demand(name)  # with its options
                return False, None
            if bindings:
                before = [each for each in bindings if each.line < line]
                return True, self._bound(name, (before or bindings[-1:])[-1], scope)
            if name in scope.parameters or name in _variable(scope):
                return True, self._parameter(name, scope)
            line, scope = 1 << 30, scope.parent
        return False, None

    def _bound(self, name: str, binding: _Binding, scope: _Scope) -> Any:
        key = (id(binding), name)
        if id(binding) in self._known:
            return self._known[id(binding)]
        if key in self._open:
            raise Unknown(f"{name} needs itself")
        self._open.add(key)
        try:
            if binding.loops:
                value = self._first(binding.value, scope, binding.line)
            else:
                value = self._value(binding.value, scope, binding.line)
            value = _unpacked(value, binding.path)
        finally:
            self._open.discard(key)
        self._known[id(binding)] = value
        return value

    def _first(self, node: ast.expr, scope: _Scope, line: int) -> Any:
        """The first item of what is looped over."""
        if isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func).rpartition(".")[2]
            if called == "enumerate":
                return 0, self._first(node.args[0], scope, line)
            if called == "zip":
                return tuple(self._first(each, scope, line) for each in node.args)
            if called in _WRAPPERS:
                return self._first(node.args[0], scope, line)
        value = self._value(node, scope, line)
        try:
            if isinstance(value, DataLoader):
                return first_batch(value)
            return next(iter(value))
        except (Exception, TooLong, Skip) as error:
            raise Unknown(f"{type(error).__name__}: {error}") from None

    def _parameter(self, name: str, scope: _Scope) -> Any:
        """What a call in the file passes for it, or its default."""
        function = scope.function
        assert function is not None
        key = (id(function), name)
        if key in self._open:
            raise Unknown(f"{name} needs itself")
        self._open.add(key)
        try:
            for call in self.calls:
                if ast.unparse(call.func).rpartition(".")[2] != function.name:
                    continue
                try:
                    return self._passed(name, scope, call)
                except Unknown:
                    continue
        finally:
            self._open.discard(key)
        default = scope.parameters.get(name)
        if default is not None:
            return self._value(default, scope.parent or self._module, function.lineno)
        if name in _variable(scope):
            return {} if function.args.kwarg and name == function.args.kwarg.arg else ()
        raise Unknown(f"nothing says what {name} is")

    def _passed(self, name: str, scope: _Scope, call: ast.Call) -> Any:
        where = self._scopes[id(call)]
        names = list(scope.parameters)
        if isinstance(call.func, ast.Attribute) and names[:1] in (["self"], ["cls"]):
            names = names[1:]
        for keyword in call.keywords:
            if keyword.arg == name:
                return self._value(keyword.value, where, call.lineno)
        if name in names and not any(isinstance(each, ast.Starred) for each in call.args):
            index = names.index(name)
            if index < len(call.args):
                return self._value(call.args[index], where, call.lineno)
        function = scope.function
        if function and function.args.kwarg and name == function.args.kwarg.arg:
            return {
                keyword.arg: self._value(keyword.value, where, call.lineno)
                for keyword in call.keywords
                if keyword.arg and keyword.arg not in names
            }
        raise Unknown(f"it does not pass {name}")


def _makes_parser(node: ast.expr) -> bool:
    """Whether it is a call of argparse's class."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("ArgumentParser")


def _bindings(node: ast.AST) -> Iterator[tuple[str, _Binding]]:
    """The names that a statement binds."""
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value, False) for target in node.targets]
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        pairs = [(node.target, node.value, False)]
    elif isinstance(node, (ast.For, ast.AsyncFor)):
        pairs = [(node.target, node.iter, True)]
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        pairs = [(i.optional_vars, i.context_expr, False) for i in node.items if i.optional_vars]
    else:
        return
    for target, value, loops in pairs:
        for name, path in _targets(target):
            yield name, _Binding(value.lineno, value, path, loops)


def _targets(target: ast.expr) -> Iterator[tuple[str, tuple[int, ...]]]:
    if isinstance(target, ast.Name):
        yield target.id, ()
    elif isinstance(target, (ast.Tuple, ast.List)):
        for index, item in enumerate(target.elts):
            if isinstance(item, ast.Starred):
                return
            for name, path in _targets(item):
                yield name, (index, *path)


def _unpacked(value: Any, path: tuple[int, ...]) -> Any:
    try:
        for index in path:
            value = list(value)[index]
    except Exception as error:
        raise Unknown(f"{type(error).__name__}: {error}") from None
    return value


def first_batch(loader: Any, size: int = _BATCH) -> Any:
    """A batch as the loader makes it, of `size` first items: without workers and samplers."""
    if loader.batch_size is None and loader.batch_sampler is None:
        return next(iter(loader.dataset))
    try:
        items = [loader.dataset[index] for index in range(min(size, len(loader.dataset)))]
    except (TypeError, NotImplementedError):  # one that is only iterated over
        items = [item for item, _ in zip(loader.dataset, range(size))]
    return loader.collate_fn(items)


def _first_of(node: ast.expr) -> ast.expr | None:
    """What `next(iter(X))` is the first item of."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "next" and node.args:
        inside = node.args[0]
        if isinstance(inside, ast.Call) and ast.unparse(inside.func) == "iter" and inside.args:
            return inside.args[0]
    return None


def _free_names(node: ast.expr) -> set[str]:
    own: set[str] = set()
    used: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            (used if isinstance(each.ctx, ast.Load) else own).add(each.id)
        elif isinstance(each, ast.arg):
            own.add(each.arg)
    return used - own - {name for name in used if hasattr(builtins, name) and name != "input"}


def _variable(scope: _Scope) -> set[str]:
    """`*args` and `**kwargs`."""
    given = scope.function.args if scope.function else None
    return {each.arg for each in (given.vararg, given.kwarg) if each} if given else set()
