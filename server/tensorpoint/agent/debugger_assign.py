"""`setVariable` and `setExpression` on elements of tensors, in the place of pydevd's.

pydevd executes the assignment as a line of the program would: on a leaf that requires a gradient
torch refuses it, elsewhere it becomes part of the graph, and its answer to both is "Unable to
change". All other assignments are left to pydevd, but for the reason where one fails on a value of
ours.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from typing import Any

from .debugger_values import Unknown
from .values.assign import set_element
from .values.nodes import Node, Page
from .values.plain import is_module, is_tensor
from .values.view import View

#: Tells the user what follows from a write.
Tell = Callable[[str], None]


def install(view: View, tell: Tell) -> None:
    """Set elements by our checks from now on. Raises Unknown."""
    api = sys.modules.get("_pydevd_bundle.pydevd_api")
    comm = sys.modules.get("_pydevd_bundle.pydevd_comm")
    if api is None or comm is None:
        return
    names = ("_write_variable_response", "_set_expression_response", "SetVariableResponseBody")
    missing = [name for name in names if not hasattr(comm, name)]
    if missing:
        raise Unknown(f"it has no {', '.join(missing)}")
    if not hasattr(api.internal_change_variable_json, "tensorpoint"):
        _wrap_variable(api, comm, view, tell)
        _wrap_expression(api, comm, view, tell)


def _wrap_variable(api: Any, comm: Any, view: View, tell: Tell) -> None:
    original = api.internal_change_variable_json

    def internal_change_variable_json(py_db: Any, request: Any) -> None:
        arguments = request.arguments
        view.cache.clear()
        variable = _variable(py_db, arguments.variablesReference)
        owner = getattr(variable, "value", None)
        if isinstance(owner, Node) and owner.assign is not None:
            act = _set_element
        elif is_tensor(owner) or is_module(owner):
            act = _set_attribute
        else:
            original(py_db, request)
            return
        try:
            note = act(variable, arguments.name, arguments.value)
            text = _now(view, variable, arguments.name)
        except Exception as error:
            message = f"{arguments.name}: {_reason(error)}"
            comm._write_variable_response(py_db, request, value="", success=False, message=message)
            return
        if note:
            tell(note)
        _answer(py_db, comm, request, comm.SetVariableResponseBody(value=text))

    internal_change_variable_json.tensorpoint = True  # type: ignore[attr-defined]
    api.internal_change_variable_json = internal_change_variable_json


def _variable(py_db: Any, reference: Any) -> Any:
    try:
        return py_db.suspended_frames_manager.get_variable(reference)
    except (KeyError, TypeError):  # a scope has another kind of reference
        return None


def _set_element(variable: Any, name: str, text: str) -> str:
    return variable.value.assign(name, _evaluated(variable.frame, text))


def _set_attribute(variable: Any, name: str, text: str) -> str:
    child = variable.get_child_variable_named(name)
    path = None if child is None else child.evaluate_name
    if not path:
        raise ValueError("no expression leads there")
    owner, _, attribute = path.rpartition(".")
    if not (owner and attribute.isidentifier()):
        raise ValueError("it can't be set")
    setattr(variable.value, attribute, _evaluated(variable.frame, text))
    return ""


def _now(view: View, variable: Any, name: str) -> str:
    """What the row says after it was set."""
    value = variable.value
    if isinstance(value, Node):
        position = int(name.strip("[]"))
        page = Page("indexed", position - value.first, 1)
        found = value.children(page) if value.children is not None else ()
        return str(found[0].value.text) if found else ""
    child = variable.get_child_variable_named(name)
    return "" if child is None else str(child.get_var_data()["value"])


def _wrap_expression(api: Any, comm: Any, view: View, tell: Tell) -> None:
    original = api.internal_set_expression_json

    def internal_set_expression_json(py_db: Any, request: Any, thread_id: Any) -> None:
        arguments = request.arguments
        view.cache.clear()
        frame = py_db.find_frame(thread_id, arguments.frameId)
        try:
            place = _element(frame, arguments.expression)
            if place is None:
                original(py_db, request, thread_id)
                return
            tensor, name, index = place
            note = set_element(tensor, index, _evaluated(frame, arguments.value), name)
            text = view.text(_evaluated(frame, arguments.expression), "watch") or ""
        except Exception as error:
            comm._set_expression_response(
                py_db, request, error_message=f"{arguments.expression}: {_reason(error)}"
            )
            return
        if note:
            tell(note)
        _answer(py_db, comm, request, comm.pydevd_schema.SetExpressionResponseBody(value=text))

    api.internal_set_expression_json = internal_set_expression_json


def _element(frame: Any, expression: str) -> tuple[Any, str, Any] | None:
    """The tensor in `tensor[index]`, its expression and the index; None for all else."""
    try:
        node = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    index: list[Any] = []
    found: tuple[Any, str] | None = None
    while frame is not None and isinstance(node, ast.Subscript):
        name = ast.unparse(node.value)
        owner = _evaluated(frame, name)
        if not is_tensor(owner):  # a list of tensors
            break
        index.insert(0, _evaluated(frame, f"{_INDEX}[{ast.unparse(node.slice)}]"))
        found, node = (owner, name), node.value  # x[1][7] is an element of x
    return None if found is None else (*found, _flat(index))


#: What gives back its index.
_INDEX = "type('', (), {'__class_getitem__': classmethod(lambda _, index: index)})"


def _flat(index: list[Any]) -> Any:
    """One index for several in a row, where each takes one dimension."""
    if len(index) == 1:
        return index[0]
    if all(isinstance(part, int) for part in index):
        return tuple(index)
    raise ValueError("of several indices in a row each has to be a whole number")


def _evaluated(frame: Any, text: str) -> Any:
    return eval(text, frame.f_globals, frame.f_locals)


def _reason(error: Exception) -> str:
    text = str(error).strip()
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"


def _answer(py_db: Any, comm: Any, request: Any, body: Any) -> None:
    answer = comm.pydevd_base_schema.build_response(request, kwargs={"body": body})
    py_db.writer.add_command(comm.NetCommand(comm.CMD_RETURN, 0, answer, is_json=True))
