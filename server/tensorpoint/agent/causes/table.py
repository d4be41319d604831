"""All rules, in the order in which they are asked: the more special come first."""

from __future__ import annotations

from collections.abc import Iterator

from ..ops.operation import Operation
from . import (
    arithmetic,
    backward,
    domain,
    linear_algebra,
    losses,
    masks,
    memory,
    normalisation,
    overflow,
    products,
    reductions,
    sampling,
    underflow,
    updates,
)
from .names import bare, node_kind
from .rule import Rule

RULES: tuple[Rule, ...] = (
    *memory.UNWRITTEN,
    *linear_algebra.RULES,
    *backward.RULES,
    *updates.RULES,
    *masks.RULES,
    *losses.RULES,
    *normalisation.RULES,
    *sampling.RULES,
    *underflow.RULES,
    *domain.RULES,
    *arithmetic.RULES,
    *products.RULES,
    *overflow.RULES,
    *reductions.RULES,
    *memory.RULES,
)


def rules_for(operation: Operation) -> Iterator[Rule]:
    """The rules that are about an operation, or about the backward node that ran it."""
    about = {"*", bare(operation.name)}
    if operation.phase == "backward" and operation.node is not None:
        about.add(node_kind(operation.node))
    raised = not operation.outputs
    return (rule for rule in RULES if rule.raises == raised and not about.isdisjoint(rule.ops))
