"""Our words in the program's expressions: metrics as functions, summaries in log points.

pydevd evaluates conditions, log messages, watches and console lines with the frame's own names.
Ours come after those and after Python's builtins: they are put into the builtins of that one
evaluation, so that a name of the user's shadows them as it shadows `len`, and none of them is left
in the program. An expression that has none of our words is evaluated as without us.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .debugger_values import Unknown

Functions = dict[str, Callable[..., Any]]


@dataclass(frozen=True)
class Words:
    """What expressions may say: names, and how to get at what they mean."""

    names: tuple[str, ...]
    functions: Callable[[], Functions]
    #: A value as a log point writes it.
    summary: Callable[[Any], Any]
    #: Something may have changed values.
    changed: Callable[[], None]


_SHOWN = "__tensorpoint_shown"
#: How our adapter asks, and what it asks a layer in the user's words.
_OURS = re.escape(f"__import__('sys').modules['{__package__}.")
_IN_LAYER = rf"{_OURS}stepping\.scopes'\]\.evaluate\({_OURS}requests'\]\.layer\(\d+\), "
#: Looking at a value this way changes nothing; nor does what our adapter asks for itself.
_LOOK = re.compile(rf"(?:{_IN_LAYER})?[\w.\[\]\s'\"]*\)?\Z|(?!{_IN_LAYER}){_OURS}")


def install(words: Words) -> None:
    """Know these words from now on. Raises Unknown."""
    pydevd = sys.modules.get("pydevd")
    variables = sys.modules.get("_pydevd_bundle.pydevd_vars")
    db = None if pydevd is None else pydevd.get_global_debugger()
    if db is None or variables is None:
        return
    try:
        expected = {
            variables.eval_in_context: ("expression", "global_vars", "local_vars"),
            variables.evaluate_expression: ("py_db", "frame", "expression", "is_exec"),
            type(db).handle_breakpoint_condition: ("self", "info", "pybreakpoint", "new_frame"),
            type(db).handle_breakpoint_expression: ("self", "pybreakpoint", "info", "new_frame"),
        }
    except AttributeError as error:
        raise Unknown(str(error)) from None
    for function, names in expected.items():
        if tuple(inspect.signature(function).parameters)[: len(names)] != names:
            raise Unknown(f"{function.__name__}{inspect.signature(function)}")
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, words.names))})\b")
    _wrap_evaluation(variables, words, pattern)
    _wrap_breakpoints(db, words, pattern)


def _wrap_evaluation(variables: Any, words: Words, pattern: re.Pattern[str]) -> None:
    if hasattr(variables.evaluate_expression, "tensorpoint"):
        return
    in_context, evaluate = variables.eval_in_context, variables.evaluate_expression

    def eval_in_context(
        expression: str, global_vars: Any, local_vars: Any, py_db: Any = None
    ) -> Any:
        if not pattern.search(expression):
            return in_context(expression, global_vars, local_vars, py_db)
        had, own = "__builtins__" in global_vars, global_vars.get("__builtins__")
        global_vars["__builtins__"] = _builtins(own, words.functions())
        try:
            return in_context(expression, global_vars, local_vars, py_db)
        finally:  # what is new or changed in it goes into the frame
            if had:
                global_vars["__builtins__"] = own
            else:
                del global_vars["__builtins__"]

    def evaluate_expression(py_db: Any, frame: Any, expression: str, is_exec: bool) -> Any:
        if not _LOOK.match(expression):
            words.changed()
        return evaluate(py_db, frame, expression, is_exec)

    evaluate_expression.tensorpoint = True  # type: ignore[attr-defined]
    variables.eval_in_context = eval_in_context
    variables.evaluate_expression = evaluate_expression
    comm = sys.modules.get("_pydevd_bundle.pydevd_comm")
    if getattr(comm, "evaluate_expression", None) is evaluate:
        comm.evaluate_expression = evaluate_expression  # type: ignore[union-attr]


def _wrap_breakpoints(db: Any, words: Words, pattern: re.Pattern[str]) -> None:
    condition, expression = db.handle_breakpoint_condition, db.handle_breakpoint_expression

    def handle_breakpoint_condition(info: Any, pybreakpoint: Any, new_frame: Any) -> Any:
        if pybreakpoint.condition and pattern.search(pybreakpoint.condition):
            new_frame = _Frame(new_frame, words.functions())
        return condition(info, pybreakpoint, new_frame)

    def handle_breakpoint_expression(pybreakpoint: Any, info: Any, new_frame: Any) -> Any:
        shown = _with_summaries(pybreakpoint.expression)
        if shown is None:
            return expression(pybreakpoint, info, new_frame)
        words.changed()  # the program has run since the last one
        more = {**words.functions(), _SHOWN: words.summary}
        return expression(_LogPoint(pybreakpoint, shown), info, _Frame(new_frame, more))

    db.handle_breakpoint_condition = handle_breakpoint_condition
    db.handle_breakpoint_expression = handle_breakpoint_expression


def _with_summaries(message: Any) -> Any:
    """The expression that pydevd made of a log message, with our words around what it formats.

    That is `'text %s' % (a, b,)`; None for anything else.
    """
    if not isinstance(message, str):
        return None
    try:
        tree = ast.parse(message, mode="eval")
    except (SyntaxError, ValueError):
        return None
    body = tree.body
    if not (isinstance(body, ast.BinOp) and isinstance(body.right, ast.Tuple)):
        return None
    body.right.elts = [
        ast.Call(ast.Name(_SHOWN, ast.Load()), [item], []) for item in body.right.elts
    ]
    return compile(ast.fix_missing_locations(tree), "<log message>", "eval")


def _builtins(own: Any, more: Functions) -> dict[str, Any]:
    known: dict[str, Any] = own if isinstance(own, dict) else vars(own or sys.modules["builtins"])
    return {**more, **known}


class _Frame:
    """A frame as pydevd evaluates in it, with more builtins."""

    def __init__(self, frame: Any, more: Functions) -> None:
        self.f_locals = frame.f_locals
        names = frame.f_globals
        self.f_globals = {**names, "__builtins__": _builtins(names.get("__builtins__"), more)}


class _LogPoint:
    """A breakpoint as pydevd evaluates its message."""

    def __init__(self, pybreakpoint: Any, expression: Any) -> None:
        self._pybreakpoint, self.expression = pybreakpoint, expression

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pybreakpoint, name)
