"""Who can say which operation of which line made a NaN or an infinity: ours, and what there is.

Each is armed around a few steps of a model and notes what it names first. What is read here of its
answer is all that it has: detect_anomaly's is in a warning, DebugUnderflowOverflow's names modules.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.debug_utils import DebugUnderflowOverflow

import tensorpoint

_TORCH = str(Path(torch.__file__).parent)
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


@dataclass
class Named:
    """What a finder named first: the operation without its overload, and the line."""

    op: str | None = None
    line: int | None = None


Finder = Callable[[nn.Module, Named], AbstractContextManager[None]]


@contextmanager
def _ours(_: nn.Module, named: Named) -> Iterator[None]:
    stops: list[Any] = []
    with tensorpoint.watch("nonfinite()", on=stops.append):
        yield
    operation = stops[0].operation if stops else None
    if operation is not None:  # in a backward, the one of the forward that it belongs to
        named.op = (operation.forward_op or operation.name).split(".")[1]
        named.line = operation.line if operation.forward_op is None else operation.forward_line


@contextmanager
def _detect_anomaly(_: nn.Module, named: Named) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as told, torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("always")
        try:
            yield
        except RuntimeError as error:
            node = re.search(r"'(\w+?)Backward\d*' returned nan", str(error))
            if node is None:
                raise
            snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node[1]).lower()
            traces = [str(item.message) for item in told if "Traceback of forward" in str(item)]
            named.op, named.line = snake, _last_line(traces[0]) if traces else None


@contextmanager
def _debug_underflow_overflow(model: nn.Module, named: Named) -> Iterator[None]:
    watch = DebugUnderflowOverflow(model)
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            yield
        except ValueError:
            assert watch.detected_overflow  # it names modules: no operation, no line


class _EachOutput(TorchDispatchMode):
    """What one writes by hand: look at the result of every operation.

    Without `raises` it only counts: models make infinities that are meant, such as a mask's.
    """

    def __init__(self, *, raises: bool = True) -> None:
        super().__init__()
        self._raises = raises
        self.found = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if (
                isinstance(value, torch.Tensor)
                and value.is_floating_point()
                and not value.isfinite().all()
            ):
                self.found += 1
                if self._raises:
                    raise FloatingPointError(func.overloadpacket.__name__)
        return result


@contextmanager
def _isfinite_mode(_: nn.Module, named: Named) -> Iterator[None]:
    try:
        with _EachOutput():
            yield
    except FloatingPointError as error:
        named.op, trace = str(error), error.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if not file.startswith((_TORCH, __file__)):
                named.line = trace.tb_lineno
            trace = trace.tb_next


@contextmanager
def debug_mode() -> Iterator[Any]:
    """torch's DebugMode as far as it goes: each operation with its stack and a hash of its output.

    The hash is the sum of absolute values, so it is not finite where an element is not.
    """
    from torch.utils._debug_mode import DebugMode

    with DebugMode(record_stack_trace=True) as mode, DebugMode.log_tensor_hashes():
        yield mode


@contextmanager
def _debug_mode(_: nn.Module, named: Named) -> Iterator[None]:
    with debug_mode() as mode:
        yield
    for call in mode.operators:
        hashes = tree_leaves((call.log or {}).get("hash"))
        if any(isinstance(item, float) and not math.isfinite(item) for item in hashes):
            named.op = call.op.overloadpacket.__name__
            named.line = _last_line(call.stack_trace)
            return


def _last_line(trace: str) -> int | None:
    places = [line for file, line in _PLACE.findall(trace) if not file.startswith(_TORCH)]
    return int(places[-1]) if places else None


def isfinite_mode() -> TorchDispatchMode:
    """That mode for a run that goes on."""
    return _EachOutput(raises=False)


#: By the names that the tables use.
FINDERS: dict[str, Finder] = {
    "tensorpoint": _ours,
    "set_detect_anomaly(True)": _detect_anomaly,
    "DebugUnderflowOverflow": _debug_underflow_overflow,
    "isfinite() on each operation": _isfinite_mode,
    "DebugMode": _debug_mode,
}
