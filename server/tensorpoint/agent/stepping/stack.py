"""The layers that run on a thread, read from its Python frames: what the layer thread shows.

The frames are the truth: hooks may have been installed in the middle of a forward. A layer is a
call of `Module._call_impl`, or of a `forward` that a program calls directly, which runs no hook.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from .. import debugger_files
from ..frames import AGENT_FOLDER, outwards
from ..modules import Names, is_compiled
from ..ops.stack import is_replay

if TYPE_CHECKING:
    from torch.nn import Module

_DIRECT = "called through .forward()"
#: Functions of torch's checkpoint that run a forward again for the backward pass.
_RECOMPUTING = frozenset({"recompute_fn", "unpack_hook", "backward"})


@dataclass(eq=False)
class Layer:
    """One layer of the stack: a module that runs, or one that a backward pass is in.

    `module` is an optimizer where `phase` is one of its own.
    """

    module: Any
    path: str
    phase: str = "forward"
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    #: What it has returned, where it has.
    output: Any = None
    has_output: bool = False
    #: The frame of its forward while that runs.
    frame: FrameType | None = None
    notes: tuple[str, ...] = ()
    #: What backward has brought, by name.
    gradients: dict[str, Any] = field(default_factory=dict[str, Any])
    #: Whether it runs as a call of the module, which hooks hear of; else its `forward` does alone.
    is_call: bool = True


def read(frame: FrameType | None, names: Names) -> list[Layer]:
    """The layers of the calls on the Python stack at `frame`, outermost first."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return []
    call_impl = torch.nn.Module._call_impl.__code__
    found: list[Layer] = []
    inner: list[FrameType] = []
    replayed: int | None = None
    for outer in outwards(frame):
        if replayed is None and is_replay(outer):
            found.extend(_called_directly(inner, None))
            replayed, inner = len(found), []
        elif outer.f_code is call_impl:
            names_there = outer.f_locals
            module = names_there["self"]
            found.extend(_called_directly(inner, module))
            found.append(
                Layer(
                    module,
                    "",
                    args=names_there["args"],
                    kwargs=names_there["kwargs"],
                    frame=_forward_of(module, inner),
                )
            )
            inner = []
        elif not _is_ours(outer):
            inner.append(outer)
    if replayed:
        _drop_live(found, replayed)
    found.reverse()
    _name(found, names)
    if found:
        _annotate(found, inner)
    return found


def is_in_layer(frame: FrameType | None) -> bool:
    """Whether a thread is in the call of a module. It may run on meanwhile."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return False
    call_impl = torch.nn.Module._call_impl.__code__
    return any(outer.f_code is call_impl for outer in outwards(frame))


def place_of(layer: Layer) -> tuple[FrameType | None, str | None, int | None]:
    """The live frame, or else file and line of where its class defines `forward`."""
    if layer.frame is not None:
        return layer.frame, None, layer.frame.f_lineno
    function = getattr(type(layer.module), "step" if "update" in layer.phase else "forward", None)
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    if code is None or code.co_filename.startswith("<"):
        return None, None, None
    return None, code.co_filename, code.co_firstlineno


def forward_code(module: Any) -> CodeType | None:
    """The code of the forward that a call of `module` runs."""
    forward = getattr(module, "forward", None)
    return None if forward is None else getattr(inspect.unwrap(forward), "__code__", None)


def _drop_live(found: list[Layer], replayed: int) -> None:
    """Leave out the layers of the live run that a second one runs again, `replayed` layers deep."""
    again = found[replayed - 1].module
    for position in range(replayed, len(found)):
        if found[position].module is again:
            del found[replayed : position + 1]
            return


def _name(layers: list[Layer], names: Names) -> None:
    if not layers:
        return
    outermost = layers[0].module
    names.learn(outermost)
    for layer in layers:
        layer.path = names.path(layer.module, outermost)


def _annotate(layers: list[Layer], around: list[FrameType]) -> None:
    """What there is to say of the outermost, and of compiled ones."""
    notes: list[str] = []
    if _is_recomputed(around):
        notes.append("recomputed for backward")
    token = _token(layers[0])
    if token is not None:
        notes.append(f"token {token}")
    layers[0].notes = tuple(notes)
    for layer in layers:
        if is_compiled(layer.module):
            layer.notes = (*layer.notes, "compiled: one layer")


def _is_recomputed(around: list[FrameType]) -> bool:
    return any(
        frame.f_code.co_name in _RECOMPUTING
        and frame.f_code.co_filename.endswith(os.path.join("utils", "checkpoint.py"))
        for frame in around
    )


def _token(layer: Layer) -> int | None:
    """How many tokens a language model's cache holds: the number of the first one of this call."""
    for value in layer.kwargs.values():
        length = getattr(type(value), "get_seq_length", None)
        if length is not None:
            try:
                return int(length(value))
            except Exception:  # a cache of the program's own kind: a note, no more
                return None
    return None


def _called_directly(inner: list[FrameType], around: Any) -> list[Layer]:
    """Layers whose `forward` the program calls itself, innermost first."""
    base: Any = sys.modules["torch"].nn.Module
    found: list[Layer] = []
    for frame in inner:
        if frame.f_code.co_name != "forward" or frame.f_code.co_argcount == 0:
            continue
        first = frame.f_code.co_varnames[0]
        module = frame.f_locals.get(first)
        if module is around or not isinstance(module, base):
            continue
        if forward_code(module) is frame.f_code:
            arguments = frame.f_code.co_varnames[1 : frame.f_code.co_argcount]
            kwargs = {name: frame.f_locals[name] for name in arguments if name in frame.f_locals}
            found.append(
                Layer(module, "", kwargs=kwargs, frame=frame, notes=(_DIRECT,), is_call=False)
            )
    return found


def _forward_of(module: Module, inner: list[FrameType]) -> FrameType | None:
    """The frame of its forward, of those that its call has made; `inner` is innermost first."""
    code = forward_code(module)
    own = [frame for frame in inner if frame.f_code is code]
    if own:
        return own[-1]
    here = sys.modules["torch.nn.modules.module"].__file__
    others = [frame for frame in inner if frame.f_code.co_filename != here]
    return others[-1] if others else None


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith((AGENT_FOLDER, debugger_files.folder()))
