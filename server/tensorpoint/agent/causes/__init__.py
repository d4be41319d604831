"""Why an operation made a bad value: a table of rules over its name, operands and type."""

from __future__ import annotations

from collections.abc import Mapping

from ..ops.cause import Cause
from ..ops.operation import Operation
from ..tensors import unseen
from .element import find
from .names import node_kind
from .rule import Rule
from .table import RULES, rules_for

__all__ = ["RULES", "Rule", "explain"]

_NO_NAMES: Mapping[str, str] = {}


@unseen
def explain(
    operation: Operation, names: Mapping[str, str] = _NO_NAMES, scale: float | None = None
) -> Cause | None:
    """The cause by the first rule that fits, None where none does.

    `names` says what the program calls the arguments, by their names in the schema. `scale` is what
    a gradient scaler multiplies gradients with at the moment. An operation that raised an exception
    has no `outputs`.

    It reads the values of arguments and outputs (on CUDA it waits for the device) and changes
    nothing; they have to be what they were at the call. A fault in a rule is raised.
    """
    at = find(operation, names, scale)
    if at is None:
        return None
    for rule in rules_for(operation):
        cause = rule.judge(operation, at)
        if cause is not None:
            return _finished(operation, rule, cause)
    return None


def _finished(operation: Operation, rule: Rule, cause: Cause) -> Cause:
    """As a sentence; one about an operation in a backward says so, unless its rule does."""
    text, node = cause.cause, operation.node
    if text.startswith("the "):  # an operand without a name
        text = f"T{text[1:]}"
    if operation.phase == "backward" and node is not None and node_kind(node) not in rule.ops:
        text = f"In the backward ({node}): {text}"
    return Cause(text, cause.cure)
