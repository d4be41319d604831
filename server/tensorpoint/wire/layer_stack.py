"""The stack of layers at a stop: what the virtual layer thread of a debugger shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

#: Where a layer is: about to run, running, has returned; the same in the backward pass; or an
#: optimizer, which is a layer of its own, before and after its step.
Phase = Literal[
    "entry", "forward", "exit", "backward entry", "backward", "backward exit", "update", "updated"
]


@dataclass(frozen=True)
class LayerFrame:
    """One layer of the stack.

    `path` is below the root ("" for the root itself). `file` and `line` are the live line of its
    forward while that runs, else where its class defines it; None where there is no source.
    `library` says that the debugger would not show that file as the user's own. `note` is what
    else there is to say: "compiled", "recomputed", "token 5". `frame_id` is the id that its running
    frame has for the client, 0 where it has none.
    """

    path: str
    type: str
    phase: Phase
    file: str | None
    line: int | None
    live: bool
    library: bool
    note: str | None = None
    frame_id: int = 0


@dataclass(frozen=True)
class LayerStack:
    """The layers that run on a Python thread, innermost first.

    `root` is the class of the outermost one, `root_id` tells roots of one class apart. `thread` is
    the id of the Python thread as DAP has it. `back` is why there is no step back from here; None
    where there is one. `replayed` is true in a second run of the forward.
    """

    thread: int
    root: str
    root_id: int
    frames: tuple[LayerFrame, ...]
    step: int | None = None
    back: str | None = None
    replayed: bool = False
    #: The id that the frame on top of the real stack has for the client; 0 if that is not known.
    top: int = 0

    def as_message(self) -> dict[str, Any]:
        """As plain JSON, to be read only. (`asdict` copies: 130 calls at each step by layers.)"""
        return {**vars(self), "frames": [vars(frame) for frame in self.frames]}
