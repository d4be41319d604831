"""What can be armed during a step: ours, and what PyTorch users have without us."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from transformers.debug_utils import DebugUnderflowOverflow

from tensorpoint.agent.bootstrap import boot
from tensorpoint.dap.launch import PACKAGE_FOLDER
from tensorpoint.wire import WIRE_VERSION, Plan, Precision, Tensorpoint
from tensorpoint.wire.codec import encode
from tests.bench.finders import debug_mode, isfinite_mode

_NOTHING = encode(Plan(WIRE_VERSION))
_NONFINITE = encode(Plan(WIRE_VERSION, (Tensorpoint(1, "condition", "nonfinite()"),)))
#: Never stops; to be able to step back from where it would, the order of layers is recorded.
_LAYER = encode(Plan(WIRE_VERSION, (Tensorpoint(1, "layer", "", module="none.of.these"),)))
_RECORDING = encode(Plan(WIRE_VERSION, record=True))


@contextmanager
def _agent(plan: str) -> Iterator[None]:
    """Our agent as the adapter loads it, but with no debugger around it."""
    boot(str(PACKAGE_FOLDER), _NOTHING)
    sync: Callable[[str], str] = sys.modules["_tensorpoint.agent.requests"].sync
    sync(plan)
    try:
        yield
    finally:
        sync(_NOTHING)


def _nonfinite(_: nn.Module) -> AbstractContextManager[None]:
    return _agent(_NONFINITE)


def _layer_breakpoint(_: nn.Module) -> AbstractContextManager[None]:
    return _agent(_LAYER)


def _recording(_: nn.Module) -> AbstractContextManager[None]:
    return _agent(_RECORDING)


def _data(model: nn.Module) -> AbstractContextManager[None]:
    return _agent(_data_breakpoint(model, "module"))


def _data_by_operation(model: nn.Module) -> AbstractContextManager[None]:
    return _agent(_data_breakpoint(model, "op"))


def _data_breakpoint(model: nn.Module, precision: Precision) -> str:
    """One on the last parameter, which every step changes; its condition is never true."""
    name = [name for name, _ in model.named_parameters()][-1]
    watched = Tensorpoint(1, "data", "nonfinite", name)
    return encode(Plan(WIRE_VERSION, (watched,), precision=precision))


@contextmanager
def _naive(model: nn.Module) -> Iterator[None]:
    def check(module: nn.Module, _: object, output: object) -> None:
        for value in output if isinstance(output, tuple) else (output,):
            if isinstance(value, Tensor) and value.isnan().any():
                raise ValueError(f"NaN in the output of {type(module).__name__}")

    handles = [module.register_forward_hook(check) for module in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _debug_underflow_overflow(model: nn.Module) -> Iterator[None]:
    DebugUnderflowOverflow(model)
    try:
        yield
    finally:  # it keeps no handles, and the models here have no other hooks
        for module in model.modules():
            module._forward_hooks.clear()


def _detect_anomaly(_: nn.Module) -> AbstractContextManager[object]:
    return torch.autograd.set_detect_anomaly(True)


def _isfinite_mode(_: nn.Module) -> AbstractContextManager[object]:
    return isfinite_mode()


def _debug_mode(_: nn.Module) -> AbstractContextManager[object]:
    return debug_mode()


def _none(_: nn.Module) -> AbstractContextManager[object]:
    return nullcontext()


#: By the names that `steps` and the tables use.
WATCHES: dict[str, Callable[[nn.Module], AbstractContextManager[object]]] = {
    "none": _none,
    "nonfinite": _nonfinite,
    "layer_breakpoint": _layer_breakpoint,
    "recording": _recording,
    "data": _data,
    "data_op": _data_by_operation,
    "naive": _naive,
    "detect_anomaly": _detect_anomaly,
    "DebugUnderflowOverflow": _debug_underflow_overflow,
    "isfinite_mode": _isfinite_mode,
    "DebugMode": _debug_mode,
}
