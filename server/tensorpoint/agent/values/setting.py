"""What `setVariable` and `setExpression` set of tensors and modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

from .assign import Refusal, set_element
from .nodes import Page, is_node
from .plain import is_module, is_tensor
from .view import View


class Setting:
    """Sets what is ours; all else is left to pydevd. `tell` says what follows from a write."""

    def __init__(self, view: View, tell: Callable[[str], None]) -> None:
        self._view, self._tell = view, tell

    def set_variable(self, variable: Any, name: str, text: str) -> str | None:
        """Set a row below a pydevd variable; returns what it says then, None if it isn't ours."""
        self._view.changed()
        owner = getattr(variable, "value", None)
        if is_node(owner) and owner.assign is not None:
            note = _set_element(variable, name, text)
        elif is_tensor(owner) or is_module(owner):
            note = _set_attribute(variable, name, text)
        else:
            return None
        if note:
            self._tell(note)
        return _now(variable, name)

    def set_expression(self, frame: Any, expression: str, text: str) -> str | None:
        """Set `tensor[index]`; returns what it is then, None for other expressions."""
        self._view.changed()
        place = _element(frame, expression)
        if place is None:
            return None
        tensor, name, index = place
        _check_owner(frame, name)
        note = set_element(tensor, index, _evaluated(frame, text), name)
        if note:
            self._tell(note)
        return self._view.text(_evaluated(frame, expression), "watch") or ""


def _set_element(variable: Any, name: str, text: str) -> str:
    expression = variable.evaluate_name or "the tensor"
    _check_owner(variable.frame, expression)
    return variable.value.assign(name, _evaluated(variable.frame, text), expression)


def _check_owner(frame: Any, expression: str) -> None:
    """Refuse `weight.data` and its rows; what is no tensor may have a tensor called data."""
    found = _DATA.fullmatch(expression)
    if frame is not None and found is not None and is_tensor(_evaluated(frame, found["owner"])):
        raise Refusal(
            f"{expression} has a version of its own: a backward that needs the old value would "
            f"compute something else silently. Set {found['owner']} itself"
        )


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


def _now(variable: Any, name: str) -> str:
    """What the row says after it was set."""
    value = variable.value
    if is_node(value):
        position = int(name.strip("[]"))
        page = Page("indexed", position - value.first, 1)
        found = value.children(page) if value.children is not None else ()
        return str(found[0].value.text) if found else ""
    child = variable.get_child_variable_named(name)
    return "" if child is None else str(child.get_var_data()["value"])


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


#: `weight.data`, and a row of it.
_DATA = re.compile(r"(?P<owner>.+)\.data(\[\d+\])*")
#: What gives back its index.
_INDEX = "type('', (), {'__class_getitem__': classmethod(lambda _, index: index)})"


def _flat(index: list[Any]) -> Any:
    """One index for several in a row, where each takes one dimension."""
    if len(index) == 1:
        return index[0]
    if all(type(part) is int for part in index):
        return tuple(index)
    raise ValueError("of several indices in a row each has to be a whole number")


def _evaluated(frame: Any, text: str) -> Any:
    return eval(text, frame.f_globals, frame.f_locals)
