"""`setVariable` and `setExpression` on elements of tensors, in the place of pydevd's.

pydevd executes the assignment as a line of the program would: on a leaf that requires a gradient
torch refuses it, elsewhere it becomes part of the graph, and its answer to both is "Unable to
change". All other assignments are left to pydevd, but for the reason where one fails on a value of
ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .debugger_values import Unknown

if TYPE_CHECKING:
    from .values.setting import Setting

#: Makes what sets values, when the first is set.
MakeSetting = Callable[[], "Setting"]


def install(setting: MakeSetting) -> None:
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
        _wrap_variable(api, comm, setting)
        _wrap_expression(api, comm, setting)


def _wrap_variable(api: Any, comm: Any, setting: MakeSetting) -> None:
    original = api.internal_change_variable_json

    def internal_change_variable_json(py_db: Any, request: Any) -> None:
        arguments = request.arguments
        try:
            variable = py_db.suspended_frames_manager.get_variable(arguments.variablesReference)
        except (KeyError, TypeError):  # a scope has another kind of reference
            variable = None
        try:
            text = setting().set_variable(variable, arguments.name, arguments.value)
        except Exception as error:
            message = f"{arguments.name}: {_reason(error)}"
            comm._write_variable_response(py_db, request, value="", success=False, message=message)
            return
        if text is None:
            original(py_db, request)
        else:
            _answer(py_db, comm, request, comm.SetVariableResponseBody(value=text))

    internal_change_variable_json.tensorpoint = True  # type: ignore[attr-defined]
    api.internal_change_variable_json = internal_change_variable_json


def _wrap_expression(api: Any, comm: Any, setting: MakeSetting) -> None:
    original = api.internal_set_expression_json

    def internal_set_expression_json(py_db: Any, request: Any, thread_id: Any) -> None:
        arguments = request.arguments
        frame = py_db.find_frame(thread_id, arguments.frameId)
        try:
            text = setting().set_expression(frame, arguments.expression, arguments.value)
        except Exception as error:
            message = f"{arguments.expression}: {_reason(error)}"
            comm._set_expression_response(py_db, request, error_message=message)
            return
        if text is None:
            original(py_db, request, thread_id)
        else:
            body = comm.pydevd_schema.SetExpressionResponseBody(value=text)
            _answer(py_db, comm, request, body)

    api.internal_set_expression_json = internal_set_expression_json


def _reason(error: Exception) -> str:
    text = str(error).strip()
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"


def _answer(py_db: Any, comm: Any, request: Any, body: Any) -> None:
    answer = comm.pydevd_base_schema.build_response(request, kwargs={"body": body})
    py_db.writer.add_command(comm.NetCommand(comm.CMD_RETURN, 0, answer, is_json=True))
