"""Puts our view of values in the place of pydevd's own, which is private API of it.

A type plugin, pydevd's way for this, can't do it: its `variables` ignores `start`, `count` and
`filter`, it emits neither `indexedVariables` nor `lazy`, and what a plugin may say is one string.
So five functions are wrapped: the one that makes a row, the one that lists what is below it, the
one that sorts rows into groups, the handler of `variables` (for the page that is asked for), and
the part of its safe repr that writes a value within a list or a dictionary. Each hands on what
isn't ours, unchanged; on another thread where that may hang (`debugger_guarded`), for which the
evaluation of expressions is wrapped, too.

pydevd looks types up in caches; nothing is cached for ours, since they never get there.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any

from .debugger_guarded import Guarded, NoAnswer, asked, is_guarded, kind_of
from .debugger_guarded import forget as forget_silent

if TYPE_CHECKING:
    from .values.rows import Rows

#: Makes the rows, or hands out those that were made: `values` is 4,000 lines, which are imported
#: when the first value is to be shown.
MakeRows = Callable[[], "Rows"]

#: What is wrapped, and the arguments that pydevd 3.4 (debugpy 1.8.14 to 1.8.22) gives it.
_EXPECTED = {
    "get_var_data": ("self", "fmt", "context"),
    "get_children_variables": ("self", "fmt", "scope"),
    "internal_get_variable_json": ("py_db", "request"),
    "_repr": ("self", "obj", "level"),
    "untrack_all": ("self",),
    "get_var_scope": ("attr_name", "attr_value", "evaluate_name", "handle_return_values"),
    "eval_in_context": ("expression", "global_vars", "local_vars"),
    "internal_evaluate_expression_json": ("py_db", "request", "thread_id"),
    "obtain_as_variable": ("self", "name", "value"),
}


class Unknown(Exception):
    """pydevd is of a version that this module doesn't know; the text says what differs."""


class _Asked(threading.local):
    """What is asked for on this thread."""

    page: tuple[str | None, int, int] = (None, 0, 0)
    #: False while torch's own repr is wanted.
    in_short: bool = True
    #: Whether an expression of the client's is evaluated.
    evaluates: bool = False

    def handed_over(self, act: Callable[[], Any]) -> Callable[[], Any]:
        """`act`, for another thread."""
        page, in_short = self.page, self.in_short

        def there() -> Any:
            self.page, self.in_short = page, in_short
            return act()

        return there


_asked = _Asked()


@dataclass(frozen=True)
class _Pydevd:
    frames: Any
    api: Any
    safe_repr: Any
    variables: Any


def install(
    rows: MakeRows, forget: Callable[[], None], report: Callable[[str, Exception], None]
) -> None:
    """Show values by `rows` from now on. Raises Unknown; harmless when called again.

    `forget` is called on a thread that goes on.
    """
    pydevd = _find()
    if hasattr(pydevd.frames._AbstractVariable.get_var_data, "tensorpoint"):
        return
    _wrap_rows(pydevd.frames, rows, report)
    _wrap_children(pydevd.frames, rows, report)
    _wrap_groups(pydevd.frames, rows, report)
    _wrap_handler(pydevd.api)
    _wrap_repr(pydevd.safe_repr, rows, report)
    _wrap_evaluation(pydevd)
    _forget_on_resume(pydevd.frames, forget)


def _find() -> _Pydevd:
    try:
        from _pydevd_bundle import (  # type: ignore[import-not-found]
            pydevd_api,
            pydevd_suspended_frames,
            pydevd_vars,
        )
        from _pydevd_bundle.pydevd_safe_repr import SafeRepr  # type: ignore[import-not-found]

        frames = pydevd_suspended_frames
        functions = (
            frames._AbstractVariable.get_var_data,
            frames._ObjectVariable.get_children_variables,
            pydevd_api.internal_get_variable_json,
            SafeRepr._repr,
            frames._FramesTracker.untrack_all,
            frames.get_var_scope,
            pydevd_vars.eval_in_context,
            pydevd_api.internal_evaluate_expression_json,
            frames._FramesTracker.obtain_as_variable,
        )
    except (ImportError, AttributeError) as error:
        raise Unknown(f"{_version()}: {error}") from None
    for function, (name, expected) in zip(functions, _EXPECTED.items(), strict=True):
        found = tuple(inspect.signature(function).parameters)
        if found[: len(expected)] != expected:
            raise Unknown(f"{_version()}: {name}{found} is not {expected}")
    return _Pydevd(frames, pydevd_api, SafeRepr, pydevd_vars)


def _version() -> str:
    return f"debugpy {getattr(sys.modules.get('debugpy'), '__version__', 'of an unknown version')}"


def _wrap_rows(frames: Any, rows: MakeRows, report: Callable[[str, Exception], None]) -> None:
    original = frames._AbstractVariable.get_var_data

    def get_var_data(
        self: Any, fmt: Any = None, context: str | None = None, **attributes: Any
    ) -> dict[str, Any]:
        try:
            own = rows().row(self, context)
        except Exception as error:
            report("showing a value", error)
            own = None
        if own is not None:
            return own
        before, _asked.in_short = _asked.in_short, context not in ("repl", "clipboard")

        def show() -> dict[str, Any]:
            with _reprs(rows, report):
                return original(self, fmt, context, **attributes)

        try:
            row = asked(self.value, _asked.handed_over(show))
        except NoAnswer as text:
            return _told(self, str(text))
        finally:
            _asked.in_short = before
        try:
            return row if context is None else rows().with_children(self, row)
        except Exception as error:
            report("telling what is in a value", error)
            return row

    get_var_data.tensorpoint = True  # type: ignore[attr-defined]
    frames._AbstractVariable.get_var_data = get_var_data


def _reprs(rows: MakeRows, report: Callable[[str, Exception], None]) -> AbstractContextManager[Any]:
    """How tensors are written in what is not ours."""
    try:
        return rows().view.reprs(in_short=_asked.in_short)
    except Exception as error:
        report("showing what is in a value", error)
        return nullcontext()


def _told(variable: Any, text: str) -> dict[str, Any]:
    """A row for a value that does not answer."""
    row = {
        "name": variable.name,
        "value": text,
        "type": kind_of(variable.value),
        "variablesReference": 0,
    }
    if variable.evaluate_name is not None:
        row["evaluateName"] = variable.evaluate_name
    return row


def _wrap_children(frames: Any, rows: MakeRows, report: Callable[[str, Exception], None]) -> None:
    original = frames._ObjectVariable.get_children_variables

    def get_children_variables(self: Any, fmt: Any = None, scope: Any = None) -> list[Any]:
        try:
            raw = rows().raw(self)
            if raw is not None:
                return _as_pydevd_lists(frames, self, raw[0], original)
            found = rows().children(self, _asked.page, frames._ObjectVariable)
        except Exception as error:
            report("listing what is in a value", error)
            found = None
        if found is not None:
            return found
        try:
            return asked(self.value, _asked.handed_over(lambda: original(self, fmt, scope)))
        except NoAnswer:
            return []

    frames._ObjectVariable.get_children_variables = get_children_variables


def _wrap_groups(frames: Any, rows: MakeRows, report: Callable[[str, Exception], None]) -> None:
    """Whether a value is a function or a class is asked of its `__class__`, which may hang."""
    original = frames.get_var_scope

    def get_var_scope(
        attr_name: str, attr_value: Any, evaluate_name: Any, handle_return_values: bool
    ) -> str:
        try:
            is_known = is_guarded(attr_value) or rows().view.is_ours(attr_value)
        except Exception as error:
            report("telling whose a value is", error)
            is_known = False
        value = None if is_known else attr_value  # grouped by its name alone
        return original(attr_name, value, evaluate_name, handle_return_values)

    frames.get_var_scope = get_var_scope


def _as_pydevd_lists(
    frames: Any, parent: Any, value: Any, original: Callable[..., list[Any]]
) -> list[Any]:
    """All attributes of a value, as without us."""
    variable = frames._ObjectVariable(
        parent.py_db,
        parent.name,
        value,
        lambda _: None,
        evaluate_name=parent.evaluate_name,
        frame=parent.frame,
    )
    variable._register_variable = parent._register_variable
    return original(variable)


def _wrap_handler(api: Any) -> None:
    original = api.internal_get_variable_json

    def internal_get_variable_json(py_db: Any, request: Any) -> None:
        arguments = request.arguments
        before, _asked.page = (
            _asked.page,
            (arguments.filter, arguments.start or 0, arguments.count or 0),
        )
        try:
            original(py_db, request)
        finally:
            _asked.page = before

    api.internal_get_variable_json = internal_get_variable_json


def _wrap_repr(safe_repr: Any, rows: MakeRows, report: Callable[[str, Exception], None]) -> None:
    original = safe_repr._repr

    def text_of(value: Any, level: int) -> str | None:
        try:
            if type(value) is MethodType:  # its `repr` has that of what it is bound to
                return of_method(value)
            if not _asked.in_short:
                return rows().view.text(value, "repl")
            return rows().view.inner_text(value) if level > 0 else None
        except Exception as error:
            report("showing a value in another one", error)
            return None

    def of_method(method: MethodType) -> str | None:
        view, owner = rows().view, method.__self__
        text = view.inner_text(owner) if _asked.in_short else view.text(owner, "repl")
        name = getattr(getattr(method.__func__, "__code__", None), "co_name", "?")
        return None if text is None else f"<bound method {name} of {text}>"

    def _repr(self: Any, obj: Any, level: int) -> Iterable[str]:
        text = text_of(obj, level)
        if text is not None:
            return (text,)
        if level == 0 or not is_guarded(obj):
            return original(self, obj, level)
        act = _asked.handed_over(lambda: (*original(self, obj, level),))
        try:
            return asked(obj, act)
        except NoAnswer as none:
            return (f"<{none}>",)

    safe_repr._repr = _repr


def _wrap_evaluation(pydevd: _Pydevd) -> None:
    """What an expression comes to is asked for its `__class__` before it gets to the view."""
    variables, tracker = pydevd.variables, pydevd.frames._FramesTracker
    in_context, obtain = variables.eval_in_context, tracker.obtain_as_variable
    evaluate = pydevd.api.internal_evaluate_expression_json

    def internal_evaluate_expression_json(py_db: Any, request: Any, thread_id: Any) -> None:
        _asked.evaluates = True
        try:
            evaluate(py_db, request, thread_id)
        finally:
            _asked.evaluates = False

    def eval_in_context(  # with the arguments that `debugger_words` knows it by
        expression: str, global_vars: Any, local_vars: Any, py_db: Any = None
    ) -> Any:
        value = in_context(expression, global_vars, local_vars, py_db)
        return Guarded(value) if _asked.evaluates and is_guarded(value) else value

    def obtain_as_variable(self: Any, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        inner = value.value if type(value) is Guarded else value
        return obtain(self, name, inner, *args, **kwargs)

    pydevd.api.internal_evaluate_expression_json = internal_evaluate_expression_json
    variables.eval_in_context = eval_in_context
    tracker.obtain_as_variable = obtain_as_variable


def _forget_on_resume(frames: Any, forget: Callable[[], None]) -> None:
    original = frames._FramesTracker.untrack_all

    def untrack_all(self: Any) -> None:
        forget()
        forget_silent()
        original(self)

    frames._FramesTracker.untrack_all = untrack_all


def value_of(reference: int) -> Any:
    """The value that a client knows by a variables reference. Raises LookupError."""
    return _variable(reference).value


def child_of(reference: int, name: str) -> tuple[Any, str | None]:
    """A row below a reference: its value, and the expression that leads to it."""
    variable = _variable(reference)
    for child in variable.get_children_variables():
        if str(child.name) == name:
            return child.value, child.evaluate_name
    raise LookupError(f"there is no {name!r} there")


def container_of(reference: int) -> tuple[Any, Any]:
    """The value that rows are below (a frame for a scope), and its frame. Raises LookupError."""
    variable = _variable(reference)
    return variable.value, getattr(variable, "frame", None)


def frame_of(reference: int) -> Any:
    """The frame that a client knows by an id. Raises LookupError."""
    return _variable(reference).frame


def _variable(reference: int) -> Any:
    pydevd = sys.modules.get("pydevd")
    schema: Any = sys.modules.get("_pydevd_bundle._debug_adapter.pydevd_base_schema")
    db = None if pydevd is None else pydevd.get_global_debugger()
    if db is None or schema is None:
        raise LookupError("no debugger is attached")
    try:
        inner = schema.BaseSchema._translate_id_from_dap(reference)
        inner = getattr(inner, "variable_reference", inner)
        return db.suspended_frames_manager.get_variable(inner)
    except KeyError:
        raise LookupError("the program has gone on since: that reference is dead") from None
