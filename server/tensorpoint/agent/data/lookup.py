"""From what a client points at to a target: a row of the variables view, or an expression."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Protocol

from .. import debugger_values
from ..values.nodes import is_node
from ..values.owners import Owners
from ..values.plain import is_module, is_parameter, is_tensor, read, tensor_word
from .targets import Target


class Frame(Protocol):
    """What an expression needs of the frame that it stands in."""

    @property
    def f_globals(self) -> dict[str, Any]: ...
    @property
    def f_locals(self) -> Mapping[str, Any]: ...


class NotWatchable(ValueError):
    """There is nothing to watch; the text says why."""


def of_row(reference: int, name: str, owners: Owners) -> Target:
    """The target of a row below a variables reference. Raises NotWatchable."""
    try:
        container, frame = debugger_values.container_of(reference)
        value, expression = debugger_values.child_of(reference, name)
    except LookupError as error:
        raise NotWatchable(str(error)) from None
    owners.look_from(frame)
    if is_node(value) and expression and frame is not None:  # an element of a tensor
        return of_expression(expression, frame, owners)
    return _target(container, name, value, expression or name, owners)


def find_row(reference: int, name: str, owners: Owners) -> Target:
    """`of_row`, of what stays. Raises NotWatchable."""
    target = of_row(reference, name, owners)
    if not target.settle():
        raise _made_anew(target.name)
    return target


def find_expression(text: str, frame: Frame | None, owners: Owners) -> Target:
    """`of_expression`, of what stays. Raises NotWatchable.

    `w.data[0]` is of an object that is made for it, but `w` stays.
    """
    target = of_expression(text, frame, owners)
    if target.settle():
        return target
    tree = ast.parse(text.strip(), mode="eval")
    written = ast.unparse(tree)
    whole = ast.unparse(_Whole().visit(tree))
    if whole != written:
        target = of_expression(whole, frame, owners)
        if target.settle():
            return target
    raise _made_anew(text)


def _made_anew(text: str) -> NotWatchable:
    return NotWatchable(
        f"{text} is made anew each time that it is evaluated, so it never changes: watch what it "
        "is made of"
    )


class _Whole(ast.NodeTransformer):
    """Takes out what gives the same memory as another object."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        return node.value if node.attr == "data" else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        made = node.func
        if isinstance(made, ast.Attribute) and made.attr == "detach" and not node.args:
            return made.value
        return node


def of_expression(text: str, frame: Frame | None, owners: Owners) -> Target:
    """The target of an expression in a frame, or of a parameter's path. Raises NotWatchable."""
    found = owners.find(text.removesuffix(".grad"))
    if frame is None and found is None:
        raise NotWatchable(
            f"{text} is no parameter or buffer of a model that has run; while the program is "
            "paused, any expression will do"
        )
    if frame is not None:
        try:
            node = ast.parse(text.strip(), mode="eval").body
            if isinstance(node, ast.Attribute):
                container = _evaluated(node.value, frame)  # once: it may be a call
                value = getattr(container, node.attr)
                return _target(container, node.attr, value, text, owners)
            return _target(None, text, _evaluated(node, frame), text, owners)
        except NotWatchable:
            raise
        except Exception as error:
            if found is None:
                reason = f"{type(error).__name__}: {error}"
                raise NotWatchable(f"{text}: {reason}") from None
    assert found is not None
    module, name = found
    if text.endswith(".grad"):
        return _gradient(getattr(module, name), text.removesuffix(".grad"), owners)
    return Target("attribute", text, module, name)


def _evaluated(node: ast.expr, frame: Frame) -> Any:
    return eval(ast.unparse(node), frame.f_globals, frame.f_locals)


def _target(container: Any, name: str, value: Any, expression: str, owners: Owners) -> Target:
    if name == "grad" and is_tensor(container):
        return _gradient(container, expression.removesuffix(".grad"), owners)
    if not is_tensor(value):
        raise NotWatchable(
            f"{expression} is {tensor_word(value)}: only tensors, parameters, buffers and "
            "gradients can be watched"
        )
    if is_module(container) and name.isidentifier():
        return Target("attribute", owners.name(value) or expression, container, name)
    if is_parameter(value):
        module, own = owners.owner(value)
        if module is not None:
            return Target("attribute", owners.name(value) or expression, module, own)
    return Target("tensor", expression, value)


def _gradient(parameter: Any, expression: str, owners: Owners) -> Target:
    if not read(parameter, "requires_grad"):
        raise NotWatchable(f"{expression} requires no gradient")
    if not (read(parameter, "is_leaf") or read(parameter, "retains_grad")):
        raise NotWatchable(
            f"{expression} is no leaf: torch keeps no gradient of it unless retain_grad() is called"
        )
    return Target("gradient", f"{owners.name(parameter) or expression}.grad", parameter)
