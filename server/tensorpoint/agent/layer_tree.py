"""The module tree of the running model, for views: paths, classes, sizes, where `forward` is.

Read by `evaluate` without a frame, on pydevd's command thread, whether the program runs or is
paused; nothing is hooked for it. The roots are those that `modules.Names` has seen called. With
nothing armed it has seen none, and they are read from the frames of calls that run just now.

A model of 2,000 modules takes some 15 ms.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..wire import WIRE_VERSION
from ..wire.layers import LayerNode, LayerRoot, LayerTree
from . import debugger_files
from .modules import Names, clean_path, running_calls
from .tensors import unseen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.nn import Module

#: More make a view slow and tell nobody anything.
_MAX_LAYERS = 20_000
#: How often to try again when the program changes a model while it is read.
_ATTEMPTS = 3


def answer(names: Names, request: str) -> str:
    """The body of `tensorpoint/layers`; `request` is JSON: `modules` false leaves out the tree."""
    wants_modules = json.loads(request).get("modules", True)
    return json.dumps(asdict(read(names, wants_modules)))


def read(names: Names, wants_modules: bool = True) -> LayerTree:
    """The modules of all roots, or only their counters."""
    process = f"process {os.getpid()}"
    roots: list[Module] = []
    note: str | None = f"torch is not imported in {process} so far"
    if "torch" in sys.modules:
        roots = _roots(names)
        note = None if roots else f"no module has been called in {process} so far"
    layers, left_out = _layers(roots) if wants_modules else ([], 0)
    return LayerTree(
        version=WIRE_VERSION,
        pid=os.getpid(),
        step=names.newest_step(),
        optimizer_step=names.optimizer_step(),
        roots=tuple(LayerRoot(type(root).__name__, names.step(root)) for root in roots),
        layers=tuple(layers),
        left_out=left_out,
        note=note,
    )


def _roots(names: Names) -> list[Module]:
    known = [root for root in names.roots() if names.root_and_path(root)[0] is root]
    if known or getattr(sys.modules["torch"], "nn", None) is None:  # torch is being imported
        return known
    running: dict[int, Module] = {}
    for frame in sys._current_frames().values():
        for call in running_calls(frame)[:1]:
            running[id(call.module)] = call.module
    return list(running.values())


def _layers(roots: list[Module]) -> tuple[list[LayerNode], int]:
    for attempt in range(_ATTEMPTS):
        try:
            found = [node for number, root in enumerate(roots) for node in _below(root, number)]
        except RuntimeError:  # a dictionary changed its size: the program is building a model
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return found[:_MAX_LAYERS], max(len(found) - _MAX_LAYERS, 0)
    return [], 0


def _below(root: Module, number: int) -> Iterator[LayerNode]:
    sizes = _sizes(root)
    places: dict[type, tuple[str | None, int | None]] = {}
    for name, module in root.named_modules():
        kind = type(module)
        if kind not in places:
            places[kind] = _place(kind)
        parameters, trainable = sizes.get(name, (0, 0))
        yield LayerNode(
            number, clean_path(root, name), kind.__name__, parameters, trainable, *places[kind]
        )


@unseen
def _sizes(root: Module) -> dict[str, tuple[int, int]]:
    """(elements, trainable elements) in and below each module, by torch's name for it.

    A tied parameter counts once in each module that has it: once in the root.
    """
    totals: dict[str, tuple[int, int]] = {}
    counted: dict[int, set[str]] = {}
    for name, module in root.named_modules():
        above = _above(name)
        for parameter in module._parameters.values():
            if parameter is None:
                continue
            already = counted.setdefault(id(parameter), set())
            elements = _elements(parameter)
            for ancestor in above:
                if ancestor not in already:
                    already.add(ancestor)
                    total, trainable = totals.get(ancestor, (0, 0))
                    totals[ancestor] = (
                        total + elements,
                        trainable + (elements if parameter.requires_grad else 0),
                    )
    return totals


def _above(name: str) -> list[str]:
    parts = name.split(".") if name else []
    return [".".join(parts[:length]) for length in range(len(parts) + 1)]


def _elements(parameter: Any) -> int:
    try:
        return int(parameter.numel())
    except (RuntimeError, ValueError):  # a lazy module's has no shape before the first call
        return 0


def _place(kind: type) -> tuple[str | None, int | None]:
    """Where a class defines `forward`, as the client knows the file."""
    forward: Any = getattr(kind, "forward", None)
    while hasattr(forward, "__wrapped__"):
        forward = forward.__wrapped__
    code = getattr(forward, "__code__", None)
    torch_folder = os.path.dirname(sys.modules["torch"].__file__ or "") + os.sep
    if code is None or code.co_filename.startswith(("<", torch_folder)):
        return None, None
    return debugger_files.client_file(code.co_filename), code.co_firstlineno
