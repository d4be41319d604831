"""What a rule says of an operation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """Why an operation made a bad value, and what helps; one sentence each."""

    #: With the element's index and the operands' values there: "log(0) is -inf: x[2, 5] is 0."
    cause: str
    #: "Clamp the argument, torch.log(x.clamp_min(eps)), or use log_softmax."
    cure: str
