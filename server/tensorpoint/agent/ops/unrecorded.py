"""What autograd's graph has kept of a forward that nobody recorded: who made a bad loss.

A node has saved what its backward needs, often all that its operation was given. Where that is so
the operation is run once more, and is the producer if it makes a bad value of good ones. That such
a value went into the loss is only said where each operation on the way passes every bad value on:
sums, products, views, and those that can be run again as well. So of many a loss nothing is said;
no line is ever known.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from .. import debugger, quiet
from ..tensors import has_nonfinite, unseen
from .dispatch import has_nan, tensors_of
from .made import Made
from .operation import Operation
from .recomputed import unpacked_again
from .recorder import Describe
from .state import Written, restored

#: Nodes of which a bad argument is always bad in the result: that of an infinity with an infinity,
#: or with 0, is NaN.
_PASSES = tuple(
    f"{name}Backward"
    for name in (
        *("Add", "Addmm", "Alias", "Bmm", "Cat", "Clone", "Expand", "Mean", "Mm", "Mul", "Mv"),
        *("Neg", "Permute", "Reshape", "Rsub", "Squeeze", "Stack", "Sub", "Sum", "T", "ToCopy"),
        *("Transpose", "UnsafeView", "Unsqueeze", "View"),
    )
)
_MAX_NODES = 2_000


def producer(loss: Any, describe: Describe) -> Made | None:
    """The operation that made what is bad in `loss`, before its backward; None if unknown."""
    node = getattr(loss, "grad_fn", None)
    if node is None:
        return None
    with ExitStack() as stack:
        stack.enter_context(debugger.untraced())
        stack.enter_context(quiet.on_this_thread())
        stack.enter_context(quiet.held_back())
        stack.enter_context(restored([], (), Written([])))
        stack.enter_context(unpacked_again())
        first = min(_producers(node), key=lambda found: found[0], default=None)
    return None if first is None else _made(first[1], describe)


def _producers(root: Any) -> Iterator[tuple[int, Operation]]:
    """Those whose bad value went into what `root` has made, with the number of their node."""
    waiting, seen = [root], {root}
    while waiting and len(seen) < _MAX_NODES:
        node = waiting.pop()
        operation = _again(node)
        if operation is None:
            if not node.name().startswith(_PASSES):
                continue
        elif not has_nonfinite(operation.output):
            continue
        elif not any(map(has_nonfinite, tensors_of(tuple(operation.arguments.values())))):
            yield node._sequence_nr(), operation
            continue
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)


@unseen
def _again(node: Any) -> Operation | None:
    """The operation of a node, run once more; None if it has not saved all that is needed."""
    from ..causes.names import forward_name  # only now, as in `locate`

    torch = sys.modules["torch"]
    packet = getattr(torch.ops.aten, forward_name(node.name()), None)
    if packet is None:
        return None
    for name in packet.overloads():
        overload = getattr(packet, name)
        wanted = [argument.name for argument in overload._schema.arguments]
        if not wanted or not all(hasattr(type(node), f"_saved_{name}") for name in wanted):
            continue
        try:
            saved = {name: getattr(node, f"_saved_{name}") for name in wanted}
            with torch.no_grad():
                result = overload(**saved)
        except Exception:
            continue  # of another overload, or it has overwritten what it had saved
        if isinstance(result, torch.Tensor):
            return Operation(packet.__name__, str(overload), saved, (result,))
    return None


def _made(operation: Operation, describe: Describe) -> Made:
    made = Made(
        name=operation.name,
        full_name=operation.full_name,
        number=0,
        has_nan=has_nan(operation.output),
        elements=operation.output.numel(),
        is_view=False,
        sources={},
        lines=(),
        has_own_line=False,
        operation=operation,
    )
    made.cause, made.operands = describe(operation)
    return made
