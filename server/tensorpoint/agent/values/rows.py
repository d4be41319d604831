"""Rows of the variables view in DAP's form, for variables as pydevd has them.

A pydevd variable is a value with a name, an expression that leads to it, and the frame it is seen
from. Nothing of pydevd is imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .children import is_raw
from .nodes import ALL, Page, is_node
from .view import View


class Rows:
    """What `debugger_values` puts into pydevd's answers."""

    def __init__(self, view: View) -> None:
        self.view = view

    def row(self, variable: Any, context: str | None) -> dict[str, Any] | None:
        """The DAP variable for a value of ours; None for pydevd's own."""
        return _row(variable, self.view, context)

    def with_children(self, variable: Any, row: dict[str, Any]) -> dict[str, Any]:
        """pydevd's row with the number of our children, where only the text is its own."""
        return _with_children(variable, self.view, row)

    def children(
        self, parent: Any, page: tuple[str | None, int, int], make: Callable[..., Any]
    ) -> list[Any] | None:
        """The variables below one, each made by `make`; None for what is left to pydevd."""
        wanted = Page(*page) if page[0] is not None or page[2] else ALL
        found = self.view.children(parent.value, wanted, parent.frame)
        if found is None:
            return None
        own = parent.evaluate_name
        return [
            make(
                parent.py_db,
                child.name or parent.name,
                child.value,
                parent._register_variable,
                evaluate_name=None if own is None or child.path is None else own + child.path,
                frame=parent.frame,
            )
            for child in found
        ]

    def raw(self, variable: Any) -> Any:
        """The value that is to be listed with all its attributes, in a tuple; None for others."""
        return (variable.value.value,) if is_raw(variable.value) else None


def _row(variable: Any, view: View, context: str | None) -> dict[str, Any] | None:
    """The DAP variable for a value of ours; None for pydevd's own."""
    value = variable.value
    if is_raw(value):
        return {
            "name": variable.name,
            "value": "",
            "type": "",
            "variablesReference": variable.get_variable_reference(),
        }
    text = view.text(value, context)
    if text is None:
        return None
    node = value if is_node(value) else None
    returned = bool(getattr(variable, "_is_return_value", False))
    frame = getattr(variable, "frame", None)
    row: dict[str, Any] = {
        "name": f"(return) {variable.name}" if returned else variable.name,
        "value": text,
        "type": node.kind if node is not None else type(value).__name__,
        "variablesReference": (
            variable.get_variable_reference() if view.is_container(value) else 0
        ),
    }
    if variable.evaluate_name is not None:
        row["evaluateName"] = variable.evaluate_name
    presentation: dict[str, Any] = {}
    if returned or (node is not None and not node.can_be_set):
        presentation["attributes"] = ["readOnly"]
    if node is not None and node.lazy:
        presentation["lazy"] = True
    hint = view.hint(value, str(variable.name), frame)
    if "indexedVariables" in hint:
        row["indexedVariables"] = hint.pop("indexedVariables")
    if hint:
        # Carried in here since pydevd's answer to `evaluate` has no place for it; the adapter
        # puts each where DAP has it.
        presentation["tensorpoint"] = hint
    if presentation:
        row["presentationHint"] = presentation
    return row


def _with_children(variable: Any, view: View, row: dict[str, Any]) -> dict[str, Any]:
    """pydevd's row with the number of our children, where only the text is its own."""
    if view.is_ours(variable.value):
        hint = view.hint(variable.value, str(variable.name), getattr(variable, "frame", None))
        count = hint.pop("indexedVariables", None)
        if count is not None:
            row["indexedVariables"] = count
        if hint:
            row["presentationHint"] = {**row.get("presentationHint", {}), "tensorpoint": hint}
    return row
