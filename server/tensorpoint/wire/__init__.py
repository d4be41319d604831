"""What crosses a process border, as frozen standard-library dataclasses.

The debuggee reads and writes these as plain JSON (it has none of our dependencies); our own
processes encode and validate the same classes with msgspec, in `codec`.
"""

from .facts import Facts
from .operation import Operand, OperationReport, PassedBy
from .plan import Plan, Precision, Tensorpoint
from .stop import Stop, TensorSummary

#: Raised by one whenever a field changes meaning. The agent refuses a plan of another version.
WIRE_VERSION = 3

__all__ = [
    "WIRE_VERSION",
    "Facts",
    "Operand",
    "OperationReport",
    "PassedBy",
    "Plan",
    "Precision",
    "Stop",
    "TensorSummary",
    "Tensorpoint",
]
