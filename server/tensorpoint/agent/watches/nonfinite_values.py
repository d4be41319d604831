"""What is NaN or infinite in a call of a module: its arguments, parameters and buffers.

A -inf may be a mask, which is meant (see `masks`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ...wire import TensorSummary
from ..masks import is_mask
from ..modules import Call, keywords_of
from ..tensors import has_nonfinite, summarise, tensors_in

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def bad_arguments(call: Call, known_fault: bool = False) -> Iterator[TensorSummary]:
    """Summaries of the non-finite arguments of `call` that no mask explains.

    Without a `known_fault` around it, a -inf of unknown intent is taken for a mask.

    A first argument that was changed in place during the call is left out: what came in is
    no longer there to be seen, and the module that changed it is the producer.
    """
    for tensor, summary in _nonfinite_arguments(call):
        if tensor is call.first_argument and call.was_first_argument_changed():
            continue
        intent = is_mask(tensor, summary.name, call.module) if is_only_neginf(summary) else False
        if intent is False or (intent is None and known_fault):
            yield summary


def masked_arguments(call: Call) -> Iterator[TensorSummary]:
    """Those with -inf alone."""
    for _, summary in _nonfinite_arguments(call):
        if is_only_neginf(summary):
            yield summary


def nonfinite_in(value: object, name: str) -> Iterator[tuple[torch.Tensor, TensorSummary]]:
    """The non-finite tensors in `value`, which is called `name`."""
    for inner, tensor in tensors_in(value, name):
        if has_nonfinite(tensor):
            yield tensor, summarise(tensor, inner)


def _nonfinite_arguments(call: Call) -> Iterator[tuple[torch.Tensor, TensorSummary]]:
    for position, value in enumerate(call.args):
        for tensor, summary in nonfinite_in(value, ""):
            name = _argument_name(call.module, position)
            yield tensor, replace(summary, name=name + summary.name)
    for keyword, value in list(keywords_of(call).items()):
        yield from nonfinite_in(value, keyword)


def _argument_name(module: Module, position: int) -> str:
    """The name that `forward` gives its argument at `position`."""
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    if position < len(parameters) and parameters[position].kind in _POSITIONAL:
        return parameters[position].name
    return f"args[{position}]"


def bad_parameter(module: Module) -> tuple[Module, str, TensorSummary] | None:
    """The first non-finite parameter or buffer below `module`: its owner, its kind, its summary."""
    for owner in module.modules():
        for kind, tensors in (("parameter", owner._parameters), ("buffer", owner._buffers)):
            for name, tensor in tensors.items():
                if tensor is not None and has_nonfinite(tensor):
                    summary = summarise(tensor, name)
                    # A mask is a buffer, or a parameter that isn't trained.
                    if tensor.requires_grad or not is_only_neginf(summary):
                        return owner, kind, summary
    return None


def own_state(module: Module) -> Iterator[torch.Tensor]:
    """The parameters and buffers of `module` without those of its children."""
    for tensors in (module._parameters, module._buffers):
        for tensor in tensors.values():
            if tensor is not None:
                yield tensor


def is_only_neginf(summary: TensorSummary) -> bool:
    """Whether nothing else in it is bad."""
    return summary.nan == 0 and summary.posinf == 0
