"""What every watch is: it is armed with rules, hears of module calls, and reports what it saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ...wire import TensorSummary
from ..modules import Call
from ..rules import Rule

if TYPE_CHECKING:
    from torch.nn import Module


@dataclass(frozen=True)
class Event:
    """Something a watch saw at a module.

    `module` is where it happened; `entered` is the module whose caller is the place to stop:
    usually the same, but for a value made inline in `module.forward` it is the child that
    received it, so that the stop is in that forward. `sentences` is the diagnosis, most
    important first. `values` are live objects for the debugger's "Tensor event" scope.
    """

    name: str
    module: Module
    entered: Module
    headline: str
    sentences: tuple[str, ...]
    value: float | int | None = None
    tensor: TensorSummary | None = None
    values: dict[str, Any] = field(default_factory=dict[str, Any])


#: Called by a watch when rules fire: suspends the thread until the user resumes. False if nothing
#: was shown, since no client is attached.
Stop = Callable[[Sequence[Rule], Event], bool]


class Watch(Protocol):
    """A watch of one metric. Its methods run in torch's hooks, on the program's threads."""

    metric: ClassVar[str]

    def arm(self, rules: Sequence[Rule]) -> None:
        """Watch for exactly these rules from now on; none switches the watch off."""
        ...

    def on_root(self, call: Call) -> None:
        """A module is called that no other module's forward encloses."""
        ...

    def on_exit(self, call: Call, outer: list[Call], output: object) -> None:
        """A module returned; `outer` are the calls around it, outermost first."""
        ...
