"""Where a bad value was made, as far as a watch knows: what to look at to find the operation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..modules import Call

if TYPE_CHECKING:
    import torch
    from torch.nn import Module


@dataclass(frozen=True, eq=False)
class Suspect:
    """A value that holds the bad tensor. `reason` is why nothing can be run again to find more."""

    value: Any
    reason: str = ""


@dataclass(frozen=True, eq=False)
class ForwardSuspect(Suspect):
    """The call of a module that is just returning, or still running, and made the value.

    `outer` are the calls around it, outermost first. `receiver` is the child that received the
    value as an argument; None if it is in the output of `call`.
    """

    call: Call = None  # type: ignore[assignment]
    outer: tuple[Call, ...] = ()
    receiver: Module | None = None


@dataclass(frozen=True, eq=False)
class LossSuspect(Suspect):
    """A bad loss: what the program computed of a model's good output, or of none."""


@dataclass(frozen=True, eq=False)
class BackwardSuspect(Suspect):
    """The backward pass that runs has brought a bad gradient, to `parameter` if that isn't None."""

    parameter: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class BufferSuspect(Suspect):
    """A buffer that a forward of `root` has written, as batch normalisation its statistics."""

    root: Module = None  # type: ignore[assignment]
    owner: Module = None  # type: ignore[assignment]
    name: str = ""
