"""Gradient clipping by norm: the functions of torch that training loops and frameworks call.

The norm before clipping is the result of one and an argument of the other; nobody can know it
afterwards. transformers' Trainer, accelerate and Lightning all end up here. `clip_grad_value_` is
not listened to: it makes nothing bad of finite gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from inspect import GEN_CREATED, getgeneratorstate
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from .spec import Adapter, Observer, Tap

if TYPE_CHECKING:
    import torch


_MODULE = "torch.nn.utils.clip_grad"
#: Between `before_clip_with_norm` and a `clip_grad_norm_` that calls what it is of: the tap, and
#: torch's own decorators.
_FRAMES_BETWEEN = 6


def before_clip(
    observer: Observer, parameters: Any, *others: Any, **more: Any
) -> list[torch.Tensor] | None:
    """Which parameters are clipped; None if that can't be told without using up an iterator."""
    noted = _parameters(parameters)
    observer.clipping(noted or ())
    return noted


def _parameters(parameters: Any) -> list[torch.Tensor] | None:
    """Those in an argument; of a generator, as `model.parameters()` is one, what its module has.

    Before its first step a generator knows its arguments, so the module can be asked again.
    """
    if isinstance(parameters, sys.modules["torch"].Tensor):
        return [parameters]
    if isinstance(parameters, GeneratorType):
        frame: Any = parameters.gi_frame
        of_module = sys.modules["torch.nn"].Module.parameters.__code__
        if parameters.gi_code is not of_module or getgeneratorstate(parameters) != GEN_CREATED:
            return None
        return list(frame.f_locals["self"].parameters(frame.f_locals["recurse"]))
    return list(parameters) if isinstance(parameters, (list, tuple, set, frozenset)) else None


def after_clip(
    observer: Observer,
    total_norm: torch.Tensor,
    parameters: Any,
    max_norm: float,
    norm_type: float = 2.0,
    *others: Any,
    noted: Iterable[torch.Tensor] = (),
    **more: Any,
) -> None:
    if float(norm_type) == 2.0:
        observer.clipped(noted, total_norm)


def before_clip_with_norm(
    observer: Observer, parameters: Any, *others: Any, **more: Any
) -> list[torch.Tensor] | None:
    """The same where it is called alone: `clip_grad_norm_` calls it, too."""
    frame: Any = sys._getframe()
    for _ in range(_FRAMES_BETWEEN):
        frame = frame.f_back
        if frame is None:
            break
        if frame.f_code.co_name == "clip_grad_norm_" and frame.f_globals["__name__"] == _MODULE:
            return None
    return before_clip(observer, parameters) or []


def after_clip_with_norm(
    observer: Observer,
    result: None,
    parameters: Any,
    max_norm: float,
    total_norm: torch.Tensor,
    *others: Any,
    noted: Iterable[torch.Tensor] | None = None,
    **more: Any,
) -> None:
    if noted is not None:
        observer.clipped(noted, total_norm)


adapter = Adapter(
    "torch-clip",
    taps=(
        Tap(
            f"{_MODULE}:clip_grad_norm_",
            "gradients",
            before=before_clip,
            after=after_clip,
        ),
        Tap(
            "torch.nn.utils:clip_grads_with_norm_",
            "gradients",
            before=before_clip_with_norm,
            after=after_clip_with_norm,
            since="torch 2.6",
        ),
    ),
)
