"""Where an exception was raised: the frames of its traceback, and whether torch raised it."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from .frames import is_internal
from .ops.operands import Site, is_raise, site, tensors_in
from .ops.peek import UNKNOWN, is_module, is_tensor

_STANDARD_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_CALL = "_call_impl"


@dataclass(frozen=True)
class Place:
    """A frame of the traceback, at the instruction that was running."""

    frame: FrameType
    lasti: int
    line: int

    @property
    def file(self) -> str:
        return self.frame.f_code.co_filename

    @property
    def name(self) -> str:
        return self.frame.f_code.co_name

    def site(self) -> Site | None:
        """What is called there."""
        frame = self.frame
        return site(frame.f_code, self.lasti, self.line, frame.f_locals, frame.f_globals)

    @property
    def raises(self) -> bool:
        return is_raise(self.frame.f_code, self.lasti)


def places_of(trace: TracebackType) -> list[Place]:
    """All frames, outermost first: those that are still running and those of the traceback."""
    outer: list[Place] = []
    frame = trace.tb_frame.f_back
    while frame is not None:
        outer.append(Place(frame, frame.f_lasti, frame.f_lineno))
        frame = frame.f_back
    outer.reverse()
    entry: TracebackType | None = trace
    while entry is not None:
        outer.append(Place(entry.tb_frame, entry.tb_lasti, entry.tb_lineno))
        entry = entry.tb_next
    return outer


def calling(places: Sequence[Place]) -> int | None:
    """The innermost frame that is neither torch's nor the standard library's, nor ours."""
    for position in range(len(places) - 1, -1, -1):
        if not is_library(places[position].frame):
            return position
    return None


def is_library(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    standard = file.startswith(_STANDARD_LIBRARY) and "-packages" not in file
    return standard or is_internal(frame)


def is_torchs(file: str) -> bool:
    return file.startswith(torch_folder())


def torch_folder() -> str:
    return os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or "?") + os.sep


def is_call(place: Place) -> bool:
    """Whether it is torch's frame around a module's forward."""
    return place.name == _CALL and is_torchs(place.file) and is_module(place.frame.f_locals["self"])


def is_of_torch(error_type: type[BaseException], places: list[Place], position: int) -> bool:
    """Whether an operation of torch's raised it, called at `position`."""
    last = places[-1]
    if position < len(places) - 1:
        # A worker's exception has its own traceback in its text; this one is of another process.
        handed_on = last.name == "reraise" and last.file == torch_folder() + "_utils.py"
        return is_torchs(last.file) and not handed_on
    if last.raises or issubclass(error_type, AssertionError):
        return False
    found = last.site()
    if found is None:
        # No source: only C code raises here, and a RuntimeError of a line with tensors is torch's.
        return issubclass(error_type, RuntimeError) and any(
            is_tensor(value) for value in last.frame.f_locals.values()
        )
    return _is_operation(found, error_type)


def _is_operation(found: Site, error_type: type[BaseException]) -> bool:
    callee = found.callee
    if _is_torch_function(callee):
        return True
    is_class = isinstance(callee, type) and callee.__module__ != "builtins"
    if is_class or isinstance(callee, (types.FunctionType, types.MethodType)):
        return False  # a wrong number of arguments is an error of this line, not of an operation
    if found.kind == "subscript" and not is_tensor(found.arguments[0].value):
        return False
    if any(tensors_in(item.expression, item.value) for item in found.operands):
        return True
    # `self.a(x) + self.b(x)`: the operands are on no name.
    return issubclass(error_type, RuntimeError) and bool(
        found.tensors or found.modules or any(map(_is_torch_function, found.functions))
    )


def _is_torch_function(callee: Any) -> bool:
    if callee is UNKNOWN or callee is None:
        return False
    if is_module(callee):
        return True
    bound = getattr(callee, "__self__", None)
    owners = (callee, bound, getattr(callee, "__objclass__", None))
    names = [str(getattr(owner, "__module__", None) or "") for owner in owners]
    if isinstance(bound, types.ModuleType):
        names.append(bound.__name__)
    return any(name == "torch" or name.startswith("torch.") for name in names)
