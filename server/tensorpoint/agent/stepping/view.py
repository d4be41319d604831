"""What the debugger shows of a thread's layers while it is suspended."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from ...wire.layer_stack import LayerFrame, LayerStack
from .. import debugger_files, suspension
from ..frames import AGENT_FOLDER
from ..modules import Names
from .scopes import in_short, inputs_of
from .stack import Layer, place_of, read


@dataclass(eq=False)
class View:
    """The layers of one suspended thread, innermost first."""

    layers: list[Layer]
    #: Around them: where a forward is run again for the backward pass, the layers that it is in.
    depth_around: int = 0
    #: Which entry of its root's call the innermost layer is, where that is counted.
    number: int | None = None
    #: Why there is no step back from here; None where there is one.
    back: str | None = "step back goes from a stop at a layer: take a step by layers first"
    replayed: bool = False
    #: Whether a step has ended here; else it is the stop of a breakpoint or a tensorpoint.
    by_step: bool = False
    step: int | None = None
    root: Any = None
    #: Modules among the children that a step in may be aimed at, by number.
    targets: list[Any] = field(default_factory=list[Any])

    @property
    def top(self) -> Layer:
        """The innermost layer."""
        return self.layers[0]

    @property
    def depth(self) -> int:
        """How many calls there are, as hooks count them."""
        return self.depth_around + sum(layer.is_call for layer in self.layers)

    @property
    def level(self) -> int:
        """The level of the position, see `goal`."""
        depth = self.depth
        return depth + 1 if self.layers and self.top.phase == "forward" else max(depth, 1)

    def stack(self, top: FrameType | None = None) -> LayerStack:
        """The same for the adapter."""
        return LayerStack(
            thread=suspension.dap_thread_id(),
            root=type(self.root).__name__,
            root_id=id(self.root),
            frames=tuple(_shown(layer) for layer in self.layers),
            step=self.step,
            back=self.back,
            replayed=self.replayed,
            top=0 if top is None else suspension.dap_frame_id(top),
        )


def view_of_frames(frame: FrameType | None, names: Names) -> View:
    """What the frames of a thread say, wherever it stopped."""
    layers = read(frame, names)
    root = names.root_and_path(layers[0].module)[0] if layers else None
    return View(
        list(reversed(layers)),
        root=root,
        step=None if root is None else names.step(root),
    )


def name_of(layer: Layer) -> str:
    """The layer in words: "layers.0.mlp (MLP)"."""
    return f"{layer.path or '(root)'} ({type(layer.module).__name__})"


def _shown(layer: Layer) -> LayerFrame:
    frame, file, line = place_of(layer)
    library = True
    if frame is not None:
        file = debugger_files.client_path(frame)
        library = not debugger_files.in_project(frame)
    elif file is not None:
        library = suspension.is_library(file)
        file = debugger_files.client_file(file)
    return LayerFrame(
        path=layer.path,
        type=type(layer.module).__name__,
        phase=layer.phase,  # type: ignore[arg-type]
        file=file,
        line=line,
        live=frame is not None,
        library=library,
        note=", ".join(layer.notes) or None,
        frame_id=0 if frame is None else suspension.dap_frame_id(frame),
    )


def program_frame() -> FrameType | None:
    """The innermost frame on this thread that is neither ours nor the debugger's."""
    frame: FrameType | None = sys._getframe()
    ours = (AGENT_FOLDER, debugger_files.folder(), "<string>")
    while frame is not None and frame.f_code.co_filename.startswith(ours):
        frame = frame.f_back
    return frame


def know_stop(view: View, known: Mapping[str, Any]) -> None:
    """At the stop of a tensorpoint the innermost layer may be about to run, or have returned."""
    if not view.layers or view.top.frame is not None or known.get("module") is not view.top.module:
        return
    view.top.phase = "exit" if "output" in known else "entry"
    view.top.output, view.top.has_output = known.get("output"), "output" in known


_HEADLINES = {
    "entry": "Entering {}",
    "exit": "Leaving {}",
    "backward entry": "Entering {} in backward",
    "backward exit": "Leaving {} in backward",
    "update": "Before the step of {}",
    "updated": "After the step of {}",
}


def headline(layer: Layer) -> str:
    """What the stop is at, in a line."""
    name = type(layer.module).__name__ if "update" in layer.phase else name_of(layer)
    return _HEADLINES[layer.phase].format(name)


def text(layer: Layer) -> str:
    """The same with shapes."""
    lines = [f"{headline(layer)}."]
    if layer.phase == "entry":
        inputs = inputs_of(layer.module, layer.args, layer.kwargs)
        values = dict(zip(inputs.names, inputs, strict=True))
    else:
        values = {"output": layer.output} if layer.has_output else layer.gradients
    if values:
        lines.append(f"{', '.join(in_short(value, name) for name, value in values.items())}.")
    return "\n".join(lines)
