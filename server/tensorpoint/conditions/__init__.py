"""What a tensorpoint is: the condition language, its meaning, and what can be refused beforehand.

Standard library only, so that the watched program can evaluate conditions; it knows neither torch
nor the debug adapter protocol. `plan.check`, by which a front end takes a condition from a user,
stays out of this namespace: it reaches Z3 (in `feasible`), which only our own processes have.
The language is described in `docs/conditions.md`.
"""

from .errors import ConditionError
from .evaluate import Lookup, Sample, evaluate, explain, false_up_to
from .parse import parse
from .tree import Condition, Input, MetricUse

__all__ = [
    "Condition",
    "ConditionError",
    "Input",
    "Lookup",
    "MetricUse",
    "Sample",
    "evaluate",
    "explain",
    "false_up_to",
    "parse",
]
