"""The lines of the program's own code behind an operation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from .. import debugger_files
from ..frames import AGENT_FOLDER, is_internal, is_internal_file, outwards
from .dispatch import is_same
from .operands import operands
from .operation import Line
from .peek import UNKNOWN

if TYPE_CHECKING:
    from torch.nn import Module

_MAX_LINES = 32
#: The frame between ours and the program's that is run again, see `replay`.
_BORDER = "replayed"
#: Where torch's Python hands over to autograd.
_ENGINE = "_engine_run_backward"


def lines_at(frame: FrameType | None) -> tuple[Line, ...]:
    """The lines outside of torch from `frame` outwards to where a replay began, if it is one.

    Where torch's own layer was run again, the line that called that.
    """
    lines: list[Line] = []
    for outer in outwards(frame):
        code = outer.f_code
        if lines and is_border(outer):
            break
        if not is_internal(outer):
            lines.append(Line(code.co_filename, outer.f_lineno, code.co_name))
            if len(lines) == _MAX_LINES:
                break
    return tuple(lines)


def replayed_frames(frame: FrameType) -> tuple[tuple[str, str], ...]:
    """File, as the client knows it, and function of the frames from this one to the replay's."""
    found: list[tuple[str, str]] = []
    for outer in outwards(frame):
        code = outer.f_code
        if is_border(outer):
            return tuple(found)
        if not is_internal(outer):
            found.append((debugger_files.client_path(outer), code.co_name))
    return ()


def module_at(frame: FrameType | None) -> Module | None:
    """The module in whose forward `frame` is, however that was called."""
    torch_nn = sys.modules["torch.nn"]
    call_impl = torch_nn.Module._call_impl.__code__
    for outer in outwards(frame):
        code = outer.f_code
        if code is call_impl:
            return outer.f_locals["self"]
        # (A compiled function runs as the forward of a module that torch.compile has generated.)
        if code.co_name == "forward" and code.co_argcount and code.co_filename[:1] != "<":
            module = outer.f_locals.get(code.co_varnames[0])
            if isinstance(module, torch_nn.Module):
                return module
    return None


def runs_hooks(module: Module, frame: FrameType | None) -> bool:
    """Whether the call of `module` that `frame` is in went by `module(...)`, not `.forward()`."""
    call_impl = sys.modules["torch.nn"].Module._call_impl.__code__
    return any(
        outer.f_code is call_impl and outer.f_locals["self"] is module for outer in outwards(frame)
    )


@dataclass(frozen=True)
class CallSite:
    """Where the program called an operation: which call of its line, see `operands`."""

    code: CodeType | None
    instruction: int = 0
    line: int = 0

    @classmethod
    def behind(cls, frame: FrameType | None) -> CallSite:
        """The innermost call outside of torch; none where autograd's engine runs it."""
        found = _outside(frame)
        return cls(None) if found is None else cls(found.f_code, found.f_lasti, found.f_lineno)

    def names(
        self, tensors: Sequence[tuple[str, Any]], frame: FrameType | None = None
    ) -> dict[str, str]:
        """What the source, and the layer that runs, call these arguments of an operation.

        By the tensors themselves while the call is running in `frame`; what that leaves open, as
        the result of another call, by the order, if there are as many operands as arguments.
        """
        names: dict[str, str] = {}
        if self.code is None:
            return names
        running, module = _outside(frame), module_at(frame)
        known = ({}, {}) if running is None else (running.f_locals, running.f_globals)
        called = operands(self.code, self.instruction, self.line, *known)
        own = [] if module is None else [*module._parameters.items(), *module._buffers.items()]
        for name, tensor in tensors:
            for expression, value in (*called, *own):
                if name not in names and is_same(tensor, value):
                    names[name] = expression
        if len(called) == len(tensors) and _is_direct(frame):
            for (name, _), (expression, value) in zip(tensors, called, strict=True):
                if value is UNKNOWN:
                    names.setdefault(name, expression)
        return names


def _outside(frame: FrameType | None) -> FrameType | None:
    debugger = debugger_files.folder()
    while frame is not None:
        code = frame.f_code
        place = _place_of(code.co_filename, code.co_name, debugger)
        if place is _Place.BORDER:
            return None
        if place is _Place.OUTSIDE:
            return frame
        frame = frame.f_back
    return None


class _Place(Enum):
    INSIDE = auto()
    OUTSIDE = auto()
    BORDER = auto()


@lru_cache(4096)
def _place_of(file: str, function: str, debugger: str) -> _Place:
    """Where a frame of this function is; the same as long as the `debugger` is."""
    if _is_border(file, function):
        return _Place.BORDER
    return _Place.INSIDE if is_internal_file(file) else _Place.OUTSIDE


def _is_direct(frame: FrameType | None) -> bool:
    """Whether no layer of torch's, with operands of its own, is between line and operation."""
    for outer in outwards(frame):
        if not is_internal(outer):
            return True
        if outer.f_code.co_name == "forward":
            return False
    return True


def is_border(frame: FrameType) -> bool:
    """Whether what is further out did not call what is further in: a replay, autograd's engine."""
    return _is_border(frame.f_code.co_filename, frame.f_code.co_name)


def is_replay(frame: FrameType) -> bool:
    """Whether what is further in is run again, see `replay`."""
    code = frame.f_code
    return code.co_name == _BORDER and code.co_filename.startswith(AGENT_FOLDER)


def _is_border(file: str, function: str) -> bool:
    if function == _BORDER:
        return file.startswith(AGENT_FOLDER)
    return function == _ENGINE and is_internal_file(file)


def is_recomputed(frame: FrameType | None) -> bool:
    """Whether `frame` is in a checkpointed forward that runs again inside a backward pass."""
    checkpoint: Any = sys.modules.get("torch.utils.checkpoint")
    if checkpoint is None:
        return False
    for outer in outwards(frame):
        if is_border(outer):
            return False
        if outer.f_code.co_filename == checkpoint.__file__:
            return True
    return False


def is_called_by_python(frame: FrameType | None) -> bool:
    """Whether a line of the program's calls `frame`, rather than autograd's engine."""
    for outer in outwards(frame):
        if is_border(outer):
            return False
        if not is_internal(outer):
            return True
    return False
