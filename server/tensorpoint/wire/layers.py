"""The modules of a running model as a tree: read by `tensorpoint/layers`.

The fields are documented in docs/vscode.md. What isn't known is None.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerRoot:
    """A module that the program calls itself; `step` counts its forward calls from 0."""

    type: str
    step: int | None


@dataclass(frozen=True)
class LayerNode:
    """One module; of several paths to it, the first.

    `root` is a position in `LayerTree.roots`, `path` the path below that one ("" for itself).
    `parameters` counts the elements of all parameters in and below it, each once, `trainable` those
    that require a gradient. `file` and `line` are where its class defines `forward`; None for
    classes of torch itself.
    """

    root: int
    path: str
    type: str
    parameters: int
    trainable: int
    file: str | None
    line: int | None


@dataclass(frozen=True)
class LayerTree:
    """All modules below the roots of one process, parents before children, in torch's order."""

    version: int
    pid: int
    step: int | None
    optimizer_step: int
    roots: tuple[LayerRoot, ...] = ()
    layers: tuple[LayerNode, ...] = ()
    #: Modules that are not listed, since there are too many.
    left_out: int = 0
    #: Why there is nothing (yet), in words.
    note: str | None = None
