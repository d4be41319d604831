"""One call of a torch operation that made a non-finite value, with its operands as they were."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Line:
    """A line of Python on the stack at which an operation was called."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, eq=False)
class Operation:
    """A call of an operation, below autograd: what the dispatcher ran.

    `arguments` are by the names in the operation's schema (`self`, `other`, `dim`, ...), tensors
    detached and, if the operation writes into one, as it was before. `outputs` are the tensors
    that it made or wrote into (for `_foreach_*` and in-place operations the changed arguments).
    """

    #: Without namespace and overload: "log", "div", "_softmax", "addmm", "_foreach_addcdiv_".
    name: str
    #: The whole name: "aten.div.Tensor".
    full_name: str
    arguments: dict[str, Any]
    outputs: tuple[torch.Tensor, ...]
    #: Which of `outputs` is the bad one.
    place: int = 0
    #: "forward", "backward" or "update".
    phase: str = "forward"
    #: In a backward pass, the autograd node that ran it: "SqrtBackward0".
    node: str | None = None
    #: In a backward pass, the operation of the forward that the node belongs to, where known.
    forward: Operation | None = None
    #: The stack at the call without torch's frames, innermost first. In a backward pass, where no
    #: Python calls it, that of the forward operation.
    lines: tuple[Line, ...] = ()
    #: The producers of its non-finite arguments, by the name of the argument.
    sources: dict[str, Operation] = field(default_factory=dict[str, "Operation"])

    #: What may have rounded a number to a 0 in its arguments of half precision, by their names.
    rounded: dict[str, Operation] = field(default_factory=dict[str, "Operation"])
    #: What the program's source calls the arguments, as far as it does: {"self": "probs"}.
    names: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def output(self) -> torch.Tensor:
        """The bad tensor."""
        return self.outputs[self.place]

    def meant_of(self, argument: Any) -> Any:
        """Of a list that is worked on member by member, as an optimizer's, the one that is meant.

        All else as it is. A fused optimizer writes into several such lists, one after the other.
        """
        first = self.arguments.get("self")
        if not isinstance(argument, (list, tuple)) or not isinstance(first, (list, tuple)):
            return argument
        member = self.place
        if self.name.startswith("_fused_"):
            member %= max(len(first), 1)
        elif not self.name.startswith("_foreach_"):
            return argument
        return argument[member] if member < len(argument) else None
