"""Under which autocasts a file calls its models: those of the `with` statements around the calls.

`with torch.autocast("cuda", dtype=torch.bfloat16): loss = step(model, batch)`: the lines of the
model's `forward` have what they have there, and so has what `step` calls. A model that is called
with and without, trained and evaluated, has both. A framework that was told of mixed precision has
the model under it wherever it is called (`frameworks`).
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from .casting import (
    NO_CASTING,
    Casting,
    Castings,
    autocast_of,
    casting_of,
    castings_made_by,
    is_autocast,
)
from .frameworks import WORDS as FRAMEWORKS
from .frameworks import accelerated, autocasts_of
from .machines import Machine, arguments_of, assigned_autocasts, called_autocast, hanging, last_name
from .source import FileModule
from .values import Unknown, Values

#: A file that has none of them calls nothing under an autocast.
WORDS = ("autocast", *FRAMEWORKS)
#: Names of models of which nobody says what they are.
MODELS = {"model", "net", "network", "module"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: From a call to the call of the function that it is in.
_DEEPEST = 4


def castings_of(file: FileModule, values: Values, kind: Any, *, alone: bool) -> Castings:
    """The autocasts under which modules of a class are called, that with most calls first.

    `alone`: what is called `model` is one of these.
    """
    if not any(word in file.source.text for word in WORDS) or not inspect.isclass(kind):
        return ()
    finder = _Finder(file, values)
    found: dict[tuple[Casting | None, Machine], None] = {}

    def is_model(node: ast.expr, call: ast.Call) -> bool:
        return _is_model(node, call, values, kind, alone)

    for made, always in autocasts_of(file.source.tree, file.source.path, values, is_model):
        found.update(dict.fromkeys(castings_made_by(made)))
        if always:  # it is within any other
            return tuple(found)
    for call in values.calls:
        if _calls(call, is_model):
            found.update(dict.fromkeys(finder.around(call)))
    return tuple(found)


def _calls(call: ast.Call, is_model: Callable[[ast.expr, ast.Call], bool]) -> bool:
    """Whether it calls a module of the class."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr == "forward":
        function = function.value
    return isinstance(function, (ast.Name, ast.Attribute)) and is_model(function, call)


def _is_model(node: ast.expr, call: ast.Call, values: Values, kind: Any, alone: bool) -> bool:
    """Whether an expression, where the call stands, is a module of the class."""
    likely = alone and last_name(node).lower() in (*MODELS, kind.__name__.lower())
    if not likely and not isinstance(node, (ast.Name, ast.Call)):
        return False
    try:
        found = values.near(node, call)
    except Unknown:
        return likely
    found = getattr(found, "module", found)
    return type(found) is kind


class _Finder:
    def __init__(self, file: FileModule, values: Values) -> None:
        self._values, self._tree, self._path = values, file.source.tree, file.source.path
        self._parents: dict[int, ast.AST] = {}
        for node in ast.walk(file.source.tree):
            for child in ast.iter_child_nodes(node):
                self._parents[id(child)] = node

    def around(self, call: ast.Call, depth: int = 0) -> Castings:
        """What a call is under."""
        node: ast.AST | None = call
        while node is not None:
            child, node = node, self._parents.get(id(node))
            if isinstance(node, (ast.With, ast.AsyncWith)) and child in node.body:
                for item in reversed(node.items):
                    found = self._of(item.context_expr, call)
                    if found:
                        return found
            if isinstance(node, _FUNCTIONS) and child in node.body:
                for decorator in node.decorator_list:
                    found = self._of(decorator, call)
                    if found:
                        return found
                return self._around_calls(node, depth)
        return NO_CASTING

    def _around_calls(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, depth: int
    ) -> Castings:
        found: dict[tuple[Casting | None, Machine], None] = {}
        for call in self._values.calls if depth < _DEEPEST else ():
            if ast.unparse(call.func).rpartition(".")[2] == function.name:
                found.update(dict.fromkeys(self.around(call, depth + 1)))
        return tuple(found) or NO_CASTING

    def _of(self, node: ast.expr, call: ast.Call) -> Castings:
        """What a context manager switches on, here and on other machines; none if it is another."""
        made, hangs = called_autocast(node), False
        if made is not None and not self._is_torch(made, call):
            known = accelerated(self._tree, self._path, self._values, made)
            return next((castings_made_by(each) if each else () for each in known), ())
        if made is None and isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            made, hangs = next(assigned_autocasts(self._tree, name), None), True
        if made is None:
            return ()
        context = self._made(made, call)
        if hangs and not self._is_on(node, call):  # `nullcontext() if device == "cpu" else ...`
            context.hanging = {*context.hanging, "enabled"}
            context._enabled = False
        return castings_made_by(context)

    def _is_torch(self, made: ast.Call, call: ast.Call) -> bool:
        """Whether it makes torch's autocast, as far as can be told; a framework has methods."""
        if not isinstance(made.func, ast.Attribute):
            return True
        try:
            return is_autocast(self._values.near(made.func, call))
        except Unknown:
            return not [*accelerated(self._tree, self._path, self._values, made)]

    def _is_on(self, node: ast.expr, call: ast.Call) -> bool:
        try:
            return casting_of(self._values.near(node, call)) is not None
        except Unknown:
            return True

    def _made(self, made: ast.Call, call: ast.Call) -> Any:
        """The autocast: what can't be told of it may be anything."""
        given: dict[str, Any] = {}
        unknown: set[str] = set()
        for name, value in arguments_of(made).items():
            try:
                given[name] = self._values.near(value, call)
            except Unknown:
                unknown.add(name)
        return autocast_of(given, {*unknown, *hanging(self._path, made.lineno)})


def joined(found: Iterator[Castings]) -> Castings:
    """Those of several files, each once."""
    return tuple(dict.fromkeys(each for castings in found for each in castings))
