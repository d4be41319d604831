"""The layer events of one step, listed rather than stopped at.

A step begins with the first call of a root and ends with that of an optimizer; without one with the
next call of the same root, or with the program. So that nothing is lost then, they are handed over
in parts, at the exit of each root.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from threading import get_ident
from typing import Any

from ...wire.layer_event import LayerEvent, Tensor
from ..modules import Names
from ..tensors import tensors_in
from ..values.plain import shape_of


class Trace:
    """Collects the events, and hands them over: a part of them, and whether it is the last."""

    def __init__(self, names: Names, tell: Callable[[list[dict[str, Any]], bool], None]) -> None:
        self._names = names
        self._tell = tell
        self._events: list[LayerEvent] = []
        #: By id: the root that the step began with.
        self._first: int | None = None
        #: The thread that it is on; autograd's own belong to it as well.
        self._thread = 0
        self.is_over = False

    def note(
        self,
        module: Any,
        phase: str,
        depth: int,
        inputs: dict[str, Any] | None = None,
        outputs: dict[str, Any] | None = None,
    ) -> None:
        """A layer is entered or left."""
        if self.is_over:
            return
        is_forward = phase in ("entry", "exit")
        if self._first is None:
            if phase != "entry":
                return
            self._first, self._thread = id(module), get_ident()
        elif phase == "entry" and depth == 1 and id(module) == self._first:
            self.end()
            return
        if is_forward and get_ident() != self._thread and "backward" not in phase:
            return
        path = "optimizer" if "update" in phase else self._names.path(module, module)
        self._events.append(
            LayerEvent(
                path, type(module).__name__, phase, depth, _tensors(inputs), _tensors(outputs)
            )
        )
        if phase == "updated":
            self.end()
        elif depth == 1 and phase.endswith("exit"):
            self._hand_over()

    def end(self) -> None:
        """The step is over."""
        self.is_over = True
        self._hand_over()

    def _hand_over(self) -> None:
        events, self._events = self._events, []
        self._tell([asdict(event) for event in events], self.is_over)


def _tensors(values: dict[str, Any] | None) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(inner, str(tensor.dtype).removeprefix("torch."), _shape(tensor))
        for name, value in (values or {}).items()
        for inner, tensor in tensors_in(value, name)
    )


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else -1 for size in shape_of(tensor) or ())
