"""Layer breakpoints: where a layer is stopped at, conditions on its call, and hit counts.

    layer:model.layers.3            where it is entered
    layer:*.mlp@exit                where it has returned
    layer:LlamaMLP@backward         where backward brings the gradient of its output

What stands before the `@` is a glob over paths, or over names of classes. A condition is one of the
language that all tensorpoints have (`step > 100`), or, if it speaks of the call (`self`, `inputs`,
`output`), a Python expression. Its names are bound by making a function of it, so that nothing is
written into the program's globals or builtins, and it sees what the layer's module imports.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, Literal, cast, get_args

from .errors import ConditionError

Phase = Literal["forward", "exit", "backward"]
PHASES: tuple[Phase, ...] = get_args(Phase)

#: What an expression on a call sees, by where it is looked at.
_NAMES: Mapping[Phase, tuple[str, ...]] = {
    "forward": ("self", "inputs"),
    "exit": ("self", "inputs", "output"),
    "backward": ("self", "grad_output"),
}
_COUNTERS = ("step", "optimizer_step")
_OF_A_CALL = frozenset(name for names in _NAMES.values() for name in names)


@dataclass(frozen=True)
class LayerName:
    """What the name of a layer breakpoint says."""

    module: str
    phase: Phase


def split_name(name: str) -> LayerName:
    """The parts of `PATH[@PHASE]`; raises ConditionError."""
    module, at, phase = name.partition("@")
    module, phase = module.strip(), phase.strip()
    if not module:
        raise ConditionError(
            "layer: needs the path of a module, such as layer:model.layers.3", name
        )
    if at and phase not in PHASES:
        known = ", ".join(f"@{item}" for item in PHASES)
        raise ConditionError(f"@{phase} is not known: a layer is stopped at {known}", name)
    return LayerName(module, cast("Phase", phase) if at else "forward")


def is_expression(condition: str) -> bool:
    """Whether it speaks of the call, which makes it a Python expression."""
    try:
        tree = ast.parse(condition.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return bool(re.search(rf"\b({'|'.join(_OF_A_CALL)})\b", condition))
    return any(isinstance(node, ast.Name) and node.id in _OF_A_CALL for node in ast.walk(tree))


def check_expression(condition: str, phase: Phase) -> str:
    """The expression, if it can be looked at in this phase; raises ConditionError."""
    text = condition.strip()
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise ConditionError(f"{error.msg}", text, (error.offset or 1) - 1) from None
    except (ValueError, MemoryError, RecursionError) as error:
        raise ConditionError(f"not an expression: {error}", text) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in _OF_A_CALL and node.id not in _NAMES[phase]:
            known = ", ".join((*_NAMES[phase], *_COUNTERS))
            others = [item for item in PHASES if node.id in _NAMES[item]]
            raise ConditionError(
                f"{node.id} is not known at @{phase}, only {known}; it is at @{others[0]}",
                text,
                node.col_offset,
            )
    return text


def bind(condition: str, phase: Phase) -> CodeType:
    """The code of a function of the names that the expression may use; to be evaluated once."""
    body = ast.parse(condition.strip(), mode="eval").body
    names = (*_NAMES[phase], *_COUNTERS)
    arguments = ast.arguments(
        posonlyargs=[],
        args=[],
        kwonlyargs=[ast.arg(name) for name in names],
        kw_defaults=[None for _ in names],
        defaults=[],
    )
    function = ast.Expression(ast.Lambda(arguments, body))
    return compile(ast.fix_missing_locations(function), "<layer breakpoint>", "eval")


def holds(code: CodeType, there: dict[str, Any], names: Mapping[str, Any]) -> bool:
    """Whether a bound expression is true, seen from a module's globals."""
    return bool(eval(code, there)(**names))
