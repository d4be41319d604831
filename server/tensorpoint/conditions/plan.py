"""The one call by which a front end takes a condition from a user."""

from __future__ import annotations

from typing import Literal

from .errors import ConditionError
from .feasible import unsatisfiable
from .layer import LayerName, check_expression, is_expression, split_name
from .parse import Parsed, parse_with_offsets
from .tree import Condition, MetricUse


def check(
    text: str,
    *,
    kind: Literal["condition", "layer"] = "condition",
    shorthand: str | None = None,
) -> Condition:
    """The condition that `text` says, if it can ever hold.

    Raises ConditionError, whose message is for the user. A `layer` breakpoint's condition may do
    without a metric (`step > 100`) and may be blank, which is `True`. `shorthand` is the metric
    that a filter's condition box stands for.
    """
    blank = kind == "layer" and not text.strip()
    need_metric = kind == "condition"
    parsed = parse_with_offsets(
        "True" if blank else text, shorthand=shorthand, need_metric=need_metric
    )
    if kind == "layer":
        _refuse_unknown_at_entry(parsed, text)
    if reason := unsatisfiable(parsed.condition):
        raise ConditionError(reason, text, len(text) - len(text.lstrip()))
    return parsed.condition


def check_layer(name: str, condition: str) -> tuple[LayerName, str]:
    """What `PATH[@PHASE]` says, and the condition of a layer breakpoint, "" for none.

    Raises ConditionError, whose message is for the user.
    """
    layer = split_name(name)
    if is_expression(condition):
        return layer, check_expression(condition, layer.phase)
    return layer, check(condition, kind="layer").text if condition.strip() else ""


def _refuse_unknown_at_entry(parsed: Parsed, text: str) -> None:
    """A layer breakpoint is looked at before the layer runs: what it will make is not there yet."""
    for source in parsed.condition.inputs:
        if isinstance(source, MetricUse):
            message = (
                f"{source.metric} is not known yet when a layer is entered: a layer breakpoint's "
                "condition can use step and optimizer_step, or be a Python expression of self, "
                "inputs and, with @exit, output"
            )
            raise ConditionError(message, text, parsed.offsets[source])
