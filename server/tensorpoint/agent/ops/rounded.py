"""Operations that left a 0 in a half-precision type: a logarithm or a quotient may be bad by it.

A 0 is no fault, so it isn't followed as bad values are, and what made it can't be asked for later.
So the newest few that may have rounded a number to 0 are kept with their operands; whether one has
is for the rules to say.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from ..tensors import unseen, values_of
from .dispatch import storage_of, tensors_of
from .operation import Operation

_OPERATIONS = frozenset(
    {
        *("_softmax", "_to_copy", "add", "add_", "addcmul", "addcmul_", "addmm", "baddbmm", "bmm"),
        *("copy_", "div", "div_", "dot", "exp", "exp2", "exp2_", "exp_", "linear", "matmul", "mm"),
        *("mul", "mul_", "mv", "pow", "pow_", "sigmoid", "sigmoid_", "softmax", "square"),
        *("square_", "sub", "sub_", "to"),
    }
)
_MOST = 8
#: Of the operands of one.
_MOST_BYTES = 64 << 20


class Rounded:
    """The newest operations whose result holds a 0."""

    def __init__(self) -> None:
        self._newest: deque[Operation] = deque(maxlen=_MOST)

    def is_candidate(self, func: Any, result: Any) -> bool:
        """Whether an operation may have rounded a number to 0."""
        torch = sys.modules["torch"]
        return (
            type(result) is torch.Tensor
            and result.dtype in (torch.float16, torch.bfloat16)
            and func.overloadpacket.__name__ in _OPERATIONS
            and _holds_zero(result)
        )

    def keep(self, func: Any, arguments: dict[str, Any], result: Any) -> None:
        """Keep a candidate, with its arguments as they were at the call."""
        tensors = tensors_of((result, *arguments.values()))
        if sum(tensor.numel() * tensor.element_size() for tensor in tensors) <= _MOST_BYTES:
            name = func.overloadpacket.__name__
            self._newest.append(Operation(name, str(func), arguments, (result,)))

    def of(self, tensor: Any) -> Operation | None:
        """What may have rounded to the zeros in a tensor, or in one that it is a view of."""
        storage = storage_of(tensor)
        return next(
            (one for one in reversed(self._newest) if storage_of(one.output) == storage), None
        )


@unseen
def _holds_zero(tensor: Any) -> bool:
    values = values_of(tensor)
    return values is not None and not bool(values.all())
