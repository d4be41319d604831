"""Gradient clipping by norm: the function of torch that training loops and frameworks call.

Its result is the norm before clipping, which nobody can know afterwards. transformers' Trainer,
accelerate and Lightning all end up here.
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


def before_clip(
    observer: Observer, parameters: Any, *others: Any, **more: Any
) -> list[torch.Tensor] | None:
    """Which parameters are clipped; None if that can't be told without using up an iterator.

    `model.parameters()` is one. Before its first step a generator knows its arguments, so the
    module can be asked again.
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


adapter = Adapter(
    "torch-clip",
    taps=(
        Tap(
            "torch.nn.utils.clip_grad:clip_grad_norm_",
            "gradients",
            before=before_clip,
            after=after_clip,
        ),
    ),
)
